//! Callbacks for changes of the level, with simulated systems.

use crate::tree::Tree;
use millpond::pressure::Watch;
use millpond::pressure::{Cause, Level, LimitKind, Turn, WatchBuilder, Why};
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::ThreadId;
use std::time::Duration;

const GIB: u64 = 1 << 30;
/// Far longer than anything in these tests.
const LONG: Duration = Duration::from_secs(30);

type Seen = (&'static str, Level, Level, Cause);

fn quick(tree: &Tree) -> WatchBuilder {
    Watch::builder()
        .readings(tree.readings())
        .interval(Duration::ZERO)
        .calm(Duration::from_millis(60))
}

fn note(
    sender: &Sender<Seen>,
    who: &'static str,
) -> impl Fn(&millpond::pressure::Change<'_>) + Send + Sync + use<> {
    let sender = Mutex::new(sender.clone());
    move |change| {
        let sender = sender.lock().expect("a sender");
        let _ = sender.send((who, change.from, change.to, change.cause));
    }
}

fn next(seen: &Receiver<Seen>) -> Seen {
    seen.recv_timeout(LONG).expect("a call")
}

fn until(mut done: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !done() {
        assert!(start.elapsed() < LONG, "never");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn changes_call_trims_before_other_callbacks() {
    let tree = Tree::new();
    let (sender, seen) = channel();
    let watch = quick(&tree)
        .tell(note(&sender, "first"))
        .trim(note(&sender, "trim"))
        .tell(note(&sender, "second"))
        .start()
        .expect("a watch");
    let late = watch.add(Turn::Trim, note(&sender, "late trim"));
    tree.machine(16 * GIB, GIB);
    let cause = Cause::Limit(LimitKind::Machine);
    for who in ["trim", "late trim", "first", "second"] {
        assert_eq!(next(&seen), (who, Level::Low, Level::High, cause));
    }
    assert_eq!(watch.level(), Level::High);
    drop(late);
    // This is still above the level's lower threshold of 85 % (90 % less 5).
    tree.machine(16 * GIB, 2 * GIB);
    assert_eq!(
        seen.recv_timeout(Duration::from_millis(400)),
        Err(RecvTimeoutError::Timeout)
    );
    tree.machine(16 * GIB, 12 * GIB);
    for who in ["trim", "first", "second"] {
        assert_eq!(next(&seen), (who, Level::High, Level::Low, Cause::Nothing));
    }
    assert_eq!(watch.last().expect("a reading").available(), Some(12 * GIB));
    assert!(watch.is_running());
}

#[test]
fn pressure_at_the_start_is_reported() {
    let tree = Tree::new();
    tree.machine(16 * GIB, 0);
    let (sender, seen) = channel();
    let watch = quick(&tree).tell(note(&sender, "a")).start().expect("a watch");
    assert_eq!(next(&seen).2, Level::Critical);
    until(|| watch.means().is_some());
    let means = watch.means().expect("means");
    assert_eq!((means.trigger, means.events), (Err(Why::Absent), 0));
    assert_eq!(means.interval, WatchBuilder::LEAST_INTERVAL);
}

#[test]
fn a_limit_that_was_reached_is_reported_even_if_memory_is_free_again() {
    let tree = Tree::version_2("/a");
    tree.folder("/a", "1073741824", "max", 0, 0, 0);
    tree.events("/a", [9, 9, 9, 9]);
    let (sender, seen) = channel();
    let watch = quick(&tree).tell(note(&sender, "a")).start().expect("a watch");
    until(|| watch.means().is_some_and(|means| means.events == 1));
    tree.events("/a", [9, 10, 9, 9]);
    assert_eq!(next(&seen), ("a", Level::Low, Level::High, Cause::Events));
    tree.events("/a", [9, 10, 9, 10]);
    assert_eq!(next(&seen), ("a", Level::High, Level::Critical, Cause::Events));
    assert_eq!(next(&seen), ("a", Level::Critical, Level::Low, Cause::Nothing));
}

#[test]
fn old_events_of_another_cgroup_are_not_reported() {
    let tree = Tree::version_2("/a");
    tree.folder("/a", "max", "max", 0, 0, 0);
    tree.folder("/b", "max", "max", 0, 0, 0);
    tree.events("/b", [0, 0, 0, 7]);
    let (sender, seen) = channel();
    let watch = quick(&tree).tell(note(&sender, "a")).start().expect("a watch");
    until(|| watch.means().is_some());
    tree.write("proc/self/cgroup", "0::/b\n");
    until(|| {
        watch
            .last()
            .is_some_and(|now| now.cgroup().is_some_and(|path| path.ends_with("b")))
    });
    assert_eq!(
        seen.recv_timeout(Duration::from_millis(200)),
        Err(RecvTimeoutError::Timeout)
    );
}

#[test]
fn a_callback_that_panics_is_reported_and_the_others_are_called() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("and again");
        }
    }
    let tree = Tree::new();
    let (sender, seen) = channel();
    let watch = quick(&tree)
        .trim(|change| panic!("no trim at {:?}", change.to))
        .trim(|_| std::panic::panic_any(Bomb))
        .tell(note(&sender, "told"))
        .start()
        .expect("a watch");
    tree.machine(16 * GIB, 0);
    assert_eq!(next(&seen).2, Level::Critical);
    let (panics, last) = watch.panics();
    assert_eq!((panics, last.as_deref()), (2, Some("a value that is not text")));
    tree.machine(16 * GIB, 12 * GIB);
    assert_eq!(next(&seen).2, Level::Low);
    assert_eq!(watch.panics().0, 4);
    assert!(watch.is_running());
}

#[test]
fn callbacks_may_use_the_watch() {
    let tree = Tree::new();
    let (sender, seen) = channel();
    let own: Arc<OnceLock<Weak<Watch>>> = Arc::default();
    let held = Arc::new(Mutex::new(Vec::new()));
    let (inner, kept, again) = (Arc::clone(&own), Arc::clone(&held), Mutex::new(sender.clone()));
    let watch = quick(&tree)
        .trim(move |change| {
            let watch = inner.get().and_then(Weak::upgrade).expect("the watch");
            assert_eq!(watch.level(), change.to);
            assert!(watch.last().is_some());
            let sender = again.lock().expect("a sender").clone();
            kept.lock()
                .expect("a list")
                .push(watch.add(Turn::Tell, note(&sender, "added")));
        })
        .tell(note(&sender, "told"))
        .start()
        .expect("a watch");
    let watch = Arc::new(watch);
    own.set(Arc::downgrade(&watch)).expect("once");
    tree.machine(16 * GIB, 0);
    assert_eq!(next(&seen).0, "told");
    tree.machine(16 * GIB, 12 * GIB);
    assert_eq!(next(&seen).0, "told");
    assert_eq!(next(&seen).0, "added", "at the change before");
    assert_eq!(watch.panics(), (0, None));
    // The subscriptions are dropped outside the list's lock, and while the thread may be calling.
    let subscriptions = std::mem::take(&mut *held.lock().expect("a list"));
    drop(subscriptions);
}

#[test]
fn dropping_a_watch_ends_its_thread() {
    let tree = Tree::new();
    let (sender, seen) = channel();
    let watch = quick(&tree)
        .interval(Duration::from_secs(3600))
        .tell(note(&sender, "told"))
        .start()
        .expect("a watch");
    let subscription = watch.add(Turn::Tell, note(&sender, "added"));
    drop(sender);
    drop(watch);
    // The thread has ended and dropped its senders. Only the subscription's weak reference is left.
    assert_eq!(seen.try_recv(), Err(std::sync::mpsc::TryRecvError::Disconnected));
    drop(subscription);
}

#[test]
fn dropping_a_watch_waits_for_a_callback() {
    let tree = Tree::new();
    tree.machine(16 * GIB, 0);
    let ended = Arc::new(AtomicBool::new(false));
    let (sender, began) = channel();
    let (inner, sender) = (Arc::clone(&ended), Mutex::new(sender));
    let watch = quick(&tree)
        .trim(move |_| {
            let _ = sender.lock().expect("a sender").send(());
            std::thread::sleep(Duration::from_millis(300));
            inner.store(true, Ordering::Relaxed);
        })
        .start()
        .expect("a watch");
    began.recv_timeout(LONG).expect("called");
    drop(watch);
    assert!(ended.load(Ordering::Relaxed));
}

#[test]
fn a_callback_may_drop_the_watch() {
    let tree = Tree::new();
    let slot: Arc<Mutex<Option<Watch>>> = Arc::default();
    let (sender, ended) = channel::<ThreadId>();
    let (inner, sender) = (Arc::clone(&slot), Mutex::new(sender));
    let watch = quick(&tree)
        .tell(move |_| {
            drop(inner.lock().expect("a watch").take());
            let _ = sender.lock().expect("a sender").send(std::thread::current().id());
        })
        .start()
        .expect("a watch");
    *slot.lock().expect("a slot") = Some(watch);
    tree.machine(16 * GIB, 0);
    ended.recv_timeout(LONG).expect("called");
    assert_eq!(
        ended.recv_timeout(LONG),
        Err(RecvTimeoutError::Disconnected),
        "its thread has ended"
    );
}

#[test]
fn the_system_can_be_watched() {
    let watch = Watch::builder()
        .interval(Duration::from_secs(3600))
        .start()
        .expect("a watch");
    until(|| watch.means().is_some());
    let trigger = watch.means().expect("means").trigger;
    // This needs no privilege if the system reports stalls at all.
    let file = OpenOptions::new().write(true).open("/proc/pressure/memory");
    let armed = file.and_then(|mut file| file.write_all(b"some 300000 2000000\0"));
    match armed {
        Err(error) => eprintln!("skipped: not told of stalls: {error}"),
        Ok(()) => assert!(trigger.is_ok(), "{trigger:?}"),
    }
    assert!(watch.last().is_some_and(|now| now.available().is_some()));
}

#[test]
fn a_child_has_no_watch() {
    let tree = Tree::new();
    let (sender, seen) = channel();
    let watch = quick(&tree).tell(note(&sender, "told")).start().expect("a watch");
    let subscription = watch.add(Turn::Trim, |_| {});
    // SAFETY: the child calls nothing that another thread can have locked but the allocator, which the system's
    // library makes usable in children.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "a child");
    if child == 0 {
        let told = !watch.is_running() && watch.last().is_none() && watch.means().is_none();
        let quiet = watch.panics() == (0, None) && watch.level() == Level::Low;
        drop(watch.add(Turn::Tell, |_| {}));
        drop(subscription);
        drop(watch);
        // SAFETY: the call ends the child at once, without running anything of the test.
        unsafe { libc::_exit(i32::from(!(told && quiet))) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0));
    // The child's drop did not affect the parent's thread.
    tree.machine(16 * GIB, 0);
    assert_eq!(next(&seen).2, Level::Critical);
    assert!(watch.is_running());
}
