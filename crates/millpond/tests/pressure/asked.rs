//! The pressure that simulated systems report.

use crate::tree::Tree;
use millpond::pressure::Pressure;
use millpond::pressure::{
    Cause, Level, LimitKind, Overcommit, Scope, Share, StallKind, Steps, Thresholds, Why,
};
use std::path::{Path, PathBuf};

const GIB: u64 = 1 << 30;

fn ask(tree: &Tree) -> Pressure {
    tree.readings().pressure(&Thresholds::default())
}

fn why(pressure: &Pressure, path: &str) -> Option<Why> {
    let missing = pressure.unread().iter().find(|m| m.path == Path::new(path))?;
    Some(missing.why)
}

fn bound(pressure: &Pressure) -> (LimitKind, Option<&str>, u64) {
    let limit = pressure.limit().expect("a limit");
    let folder = limit.folder.as_deref().map(|path| path.to_str().expect("text"));
    (limit.kind, folder, limit.bytes)
}

#[test]
fn without_other_limits_the_machine_is_the_limit() {
    let tree = Tree::new();
    let now = ask(&tree);
    assert_eq!(bound(&now), (LimitKind::Machine, None, 16 * GIB));
    assert_eq!((now.used(), now.available()), (Some(10 * GIB), Some(12 * GIB)));
    assert_eq!((now.level(), now.cause()), (Level::Low, Cause::Nothing));
    let machine = now.machine().expect("a machine");
    assert_eq!((machine.swap_total, machine.swap_free), (2 << 20, 1 << 20));
    assert_eq!(machine.overcommit, Some(Overcommit::Guess));
    assert_eq!(why(&now, "/proc/self/cgroup"), Some(Why::Absent));
    for (available, level) in [
        (4, Level::Low),
        (3, Level::Medium),
        (1, Level::High),
        (0, Level::Critical),
    ] {
        tree.machine(16 * GIB, available * GIB);
        assert_eq!(ask(&tree).level(), level, "{available}");
    }
}

#[test]
fn available_memory_is_computed_if_an_old_kernel_does_not_report_it() {
    let tree = Tree::new();
    let text = "MemTotal: 1000 kB\nMemFree: 100 kB\nBuffers: 20 kB\nCached: 80 kB\nShmem: 50 kB\n";
    tree.write("proc/meminfo", text);
    assert_eq!(ask(&tree).available(), Some(150 << 10));
    tree.write("proc/meminfo", "MemTotal: 1000 kB\n");
    let now = ask(&tree);
    assert_eq!((now.limit(), now.level()), (None, Level::Low));
    assert_eq!(why(&now, "/proc/meminfo"), Some(Why::Odd));
}

#[test]
fn the_tightest_of_nested_cgroups_binds() {
    let tree = Tree::version_2("/a/b/c");
    tree.folder("/a/b/c", "max", "max", GIB, 0, 0);
    tree.folder("/a/b", "4294967296", "max", 2 * GIB, 0, 0);
    // This one is larger than the one below, and has less free memory.
    tree.folder("/a", "8589934592", "max", 7 * GIB, 0, 0);
    let now = ask(&tree);
    assert_eq!(
        bound(&now),
        (LimitKind::CgroupMax, Some("/sys/fs/cgroup/a"), 8 * GIB)
    );
    assert_eq!(now.available(), Some(GIB));
    assert_eq!(
        (now.level(), now.cause()),
        (Level::Medium, Cause::Limit(LimitKind::CgroupMax))
    );
    assert_eq!(now.cgroup(), Some(Path::new("/sys/fs/cgroup/a/b/c")));
    assert_eq!(now.limits().len(), 3, "two of cgroups, the machine's");
}

#[test]
fn a_cgroup_without_the_controller_hides_no_ancestor() {
    let tree = Tree::version_2("/a/b");
    tree.write("sys/fs/cgroup/a/b/cgroup.type", "domain\n");
    tree.folder("/a", "1073741824", "max", GIB, 0, 0);
    let now = ask(&tree);
    assert_eq!(bound(&now), (LimitKind::CgroupMax, Some("/sys/fs/cgroup/a"), GIB));
    assert_eq!(now.level(), Level::Critical);
    assert_eq!(why(&now, "/sys/fs/cgroup/a/b/memory.current"), Some(Why::Absent));
}

#[test]
fn file_pages_count_as_available() {
    let tree = Tree::version_2("/");
    tree.folder("/", "1073741824", "max", GIB, GIB / 2, GIB / 4);
    let now = ask(&tree);
    assert_eq!(now.used(), Some(GIB));
    assert_eq!(now.available(), Some(GIB / 2 + GIB / 8));
    assert_eq!(now.level(), Level::Low);
    tree.remove("sys/fs/cgroup/memory.stat");
    let now = ask(&tree);
    assert_eq!((now.available(), now.level()), (Some(0), Level::Critical));
    assert_eq!(why(&now, "/sys/fs/cgroup/memory.stat"), Some(Why::Absent));
}

#[test]
fn a_limit_that_refuses_nothing_causes_at_most_the_high_level() {
    let tree = Tree::version_2("/a");
    tree.folder("/a", "max", "1073741824", 2 * GIB, 0, 0);
    let now = ask(&tree);
    assert_eq!(
        (now.level(), now.cause()),
        (Level::High, Cause::Limit(LimitKind::CgroupHigh))
    );
    assert_eq!(now.available(), Some(0));
}

#[test]
fn a_container_sees_its_own_part_of_the_hierarchy() {
    let tree = Tree::version_2("/kubepods/pod1/main");
    let mounts = "9 1 0:5 /kubepods/pod1 /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
    tree.write("proc/self/mountinfo", mounts);
    tree.folder("/main", "1073741824", "max", GIB, 0, 0);
    assert_eq!(bound(&ask(&tree)).1, Some("/sys/fs/cgroup/main"));
    // In its namespace the process is at the root, and the mount begins above it.
    tree.write("proc/self/cgroup", "0::/\n");
    tree.write(
        "proc/self/mountinfo",
        "9 1 0:5 /.. /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
    );
    tree.folder("", "536870912", "max", GIB / 4, 0, 0);
    let now = ask(&tree);
    assert_eq!(
        bound(&now),
        (LimitKind::CgroupMax, Some("/sys/fs/cgroup"), GIB / 2)
    );
    assert_eq!(why(&now, "/"), Some(Why::Elsewhere));
    // This path belongs to another cgroup.
    tree.write("proc/self/cgroup", "0::/kubepods/pod2/main\n");
    tree.write("proc/self/mountinfo", mounts);
    let now = ask(&tree);
    assert_eq!(bound(&now).0, LimitKind::Machine);
    assert_eq!(why(&now, "/kubepods/pod2/main"), Some(Why::Elsewhere));
    // A path with `..` is not followed.
    tree.write("proc/self/cgroup", "0::/kubepods/pod1/../../../etc\n");
    assert_eq!(bound(&ask(&tree)).0, LimitKind::Machine);
}

#[test]
fn the_highest_of_several_mounts_is_taken() {
    let tree = Tree::version_2("/a/b");
    let mounts = "1 1 0:5 /a/b /own rw - cgroup2 c rw\n2 1 0:5 / /top\\040one rw - cgroup2 c rw\n\
                  3 1 0:5 /a /part rw - cgroup2 c rw\n";
    tree.write("proc/self/mountinfo", mounts);
    for (file, text) in [
        ("memory.max", "4096\n"),
        ("memory.high", "max\n"),
        ("memory.current", "0\n"),
    ] {
        tree.write(&format!("top one/a/{file}"), text);
    }
    assert_eq!(
        bound(&ask(&tree)),
        (LimitKind::CgroupMax, Some("/top one/a"), 4096)
    );
}

#[test]
fn cgroups_of_version_1_count_if_they_control_memory() {
    let tree = Tree::new();
    tree.write("proc/self/cgroup", "9:cpu:/x\n4:memory:/docker/abc\n0::/\n");
    let mounts = "1 1 0:5 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                  2 1 0:6 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    tree.write("proc/self/mountinfo", mounts);
    let folder = |path: &str, limit: &str, usage: u64, hierarchy: &str| {
        let folder = format!("sys/fs/cgroup/memory{path}");
        tree.write(&format!("{folder}/memory.limit_in_bytes"), format!("{limit}\n"));
        tree.write(&format!("{folder}/memory.usage_in_bytes"), format!("{usage}\n"));
        tree.write(&format!("{folder}/memory.use_hierarchy"), hierarchy);
        tree.write(&format!("{folder}/memory.failcnt"), "3\n");
        tree.write(
            &format!("{folder}/memory.oom_control"),
            "under_oom 0\noom_kill 2\n",
        );
        let stat = "inactive_file 7\ntotal_inactive_file 4096\ntotal_active_file 8192\n";
        tree.write(&format!("{folder}/memory.stat"), stat);
    };
    folder("/docker/abc", "1073741824", GIB - 4096, "1\n");
    folder("/docker", "4096", 4096, "0\n");
    folder("", "9223372036854771712", 9 * GIB, "1\n");
    let now = ask(&tree);
    assert_eq!(
        bound(&now),
        (LimitKind::CgroupV1, Some("/sys/fs/cgroup/memory/docker/abc"), GIB)
    );
    assert_eq!(now.available(), Some(3 * 4096));
    assert_eq!((now.events().max, now.events().oom_kill), (6, 4));
    let parent = "/sys/fs/cgroup/memory/docker/memory.limit_in_bytes";
    assert_eq!(why(&now, parent), Some(Why::NotInherited));
    folder("/docker", "4096", 4096, "1\n");
    assert_eq!(bound(&ask(&tree)).2, 4096);
}

#[test]
fn limits_of_the_process_itself_count() {
    let tree = Tree::new();
    tree.limits("10737418240", "unlimited");
    tree.process(9 * GIB, GIB, GIB);
    let now = ask(&tree);
    assert_eq!(bound(&now), (LimitKind::AddressSpace, None, 10 * GIB));
    assert_eq!((now.level(), now.available()), (Level::High, Some(GIB)));
    tree.limits("10737418240", "1073741824");
    let now = ask(&tree);
    assert_eq!(bound(&now), (LimitKind::Data, None, GIB));
    assert_eq!((now.level(), now.available()), (Level::Critical, Some(0)));
    tree.remove("proc/self/status");
    let now = ask(&tree);
    assert_eq!(bound(&now).0, LimitKind::Machine);
    assert_eq!(why(&now, "/proc/self/status"), Some(Why::Absent));
}

#[test]
fn a_limit_that_the_system_does_not_enforce_is_listed_only() {
    let tree = Tree::new();
    let text = "Max data size unlimited\nMax resident set 4096\nMax address space unlimited\n";
    tree.write("proc/self/limits", text);
    let now = ask(&tree);
    assert!(
        now.limits()
            .iter()
            .any(|l| l.kind == LimitKind::Resident && l.used == 1 << 28)
    );
    assert_eq!((bound(&now).0, now.level()), (LimitKind::Machine, Level::Low));
}

#[test]
fn the_commit_limit_counts_if_overcommit_is_off() {
    let tree = Tree::new();
    assert!(ask(&tree).limits().iter().all(|l| l.kind != LimitKind::Commit));
    tree.write("proc/sys/vm/overcommit_memory", "2\n");
    let now = ask(&tree);
    assert_eq!(bound(&now), (LimitKind::Commit, None, 8 * GIB));
    assert_eq!(
        (now.level(), now.cause()),
        (Level::Critical, Cause::Limit(LimitKind::Commit))
    );
}

#[test]
fn stalls_of_the_own_cgroup_take_precedence_over_the_machines() {
    let tree = Tree::version_2("/a");
    tree.folder("/a", "max", "max", 0, 0, 0);
    tree.stalled("proc/pressure/memory", "99.00", "99.00");
    let now = ask(&tree);
    assert_eq!(
        (now.level(), now.cause()),
        (Level::High, Cause::Stall(Scope::System, StallKind::Some))
    );
    tree.stalled("sys/fs/cgroup/a/memory.pressure", "5.00", "0.00");
    let now = ask(&tree);
    assert_eq!(
        (now.level(), now.cause()),
        (Level::Medium, Cause::Stall(Scope::Cgroup, StallKind::Some))
    );
    assert_eq!(now.stalls().len(), 4);
    assert_eq!(now.stalls()[3].avg60, Share::hundredths(50));
    tree.stalled("sys/fs/cgroup/a/memory.pressure", "30.00", "30.00");
    let now = ask(&tree);
    assert_eq!(
        (now.level(), now.cause()),
        (Level::Critical, Cause::Stall(Scope::Cgroup, StallKind::Full))
    );
    let never = Steps::new(Share::WHOLE, Share::WHOLE, Share::WHOLE).expect("steps");
    let deaf = Thresholds::default().some_stalled(never).all_stalled(never);
    assert_eq!(tree.readings().pressure(&deaf).level(), Level::Low);
}

#[test]
fn unreadable_files_are_reported() {
    let tree = Tree::version_2("/a");
    tree.folder("/a", "max", "max", 0, 0, 0);
    tree.remove("sys/fs/cgroup/a/memory.max");
    std::fs::create_dir(tree.root().join("sys/fs/cgroup/a/memory.max")).expect("a folder");
    tree.write("sys/fs/cgroup/a/memory.high", "b\u{e4}h");
    tree.write("sys/fs/cgroup/a/memory.events.local", [0xff, 0xfe, b'\n']);
    tree.write("proc/self/limits", vec![b'x'; 100 << 10]);
    tree.write("proc/sys/vm/overcommit_memory", "");
    let now = ask(&tree);
    let told = |path: &str| why(&now, path);
    assert!(matches!(
        told("/sys/fs/cgroup/a/memory.max"),
        Some(Why::Failed(_))
    ));
    assert_eq!(told("/sys/fs/cgroup/a/memory.high"), Some(Why::Odd));
    assert_eq!(told("/sys/fs/cgroup/a/memory.events.local"), Some(Why::Odd));
    assert_eq!(told("/proc/self/limits"), Some(Why::TooLong));
    assert_eq!(told("/proc/sys/vm/overcommit_memory"), Some(Why::Odd));
    assert_eq!(now.machine().and_then(|machine| machine.overcommit), None);
    assert_eq!(now.available(), Some(12 * GIB), "the rest counts without it");
}

#[test]
fn a_pipe_without_a_writer_is_not_waited_for() {
    let tree = Tree::new();
    tree.remove("proc/meminfo");
    let path = tree.root().join("proc/meminfo");
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    if !made.is_ok_and(|status| status.success()) {
        return eprintln!("skipped: no pipe can be made");
    }
    assert_eq!(why(&ask(&tree), "/proc/meminfo"), Some(Why::Odd));
}

#[test]
fn a_deep_tree_is_read_in_part() {
    let path: String = (0..200).map(|n| format!("/{n}")).collect();
    let tree = Tree::version_2(&path);
    let folder = |depth: usize| -> String { (0..depth).map(|n| format!("/{n}")).collect() };
    tree.folder(&folder(136), "4096", "max", 0, 0, 0);
    let now = ask(&tree);
    assert_eq!(bound(&now).0, LimitKind::Machine);
    assert_eq!(
        why(&now, &format!("/sys/fs/cgroup{}", folder(136))),
        Some(Why::TooLong)
    );
    tree.folder(&folder(137), "4096", "max", 0, 0, 0);
    assert_eq!(bound(&ask(&tree)).2, 4096);
    // Two files are missing in each folder.
    for depth in 150..=200 {
        tree.write(&format!("sys/fs/cgroup{}/memory.current", folder(depth)), "0\n");
    }
    assert_eq!(ask(&tree).unread().len(), 64);
}

#[test]
fn repeated_lines_are_kept_once() {
    let tree = Tree::new();
    let line = "some avg10=1.00 avg60=0.50 avg300=0.25 total=12\n";
    tree.write("proc/pressure/memory", line.repeat(1000));
    assert_eq!(ask(&tree).stalls().len(), 2);
    tree.machine(GIB, 3 * GIB);
    assert_eq!(ask(&tree).available(), Some(GIB), "no more than there is");
}

#[test]
fn the_end_of_a_long_line_is_not_parsed() {
    let tree = Tree::version_2("/a");
    tree.folder("/a", "4096", "max", 0, 0, 0);
    // Only the first 16 KiB of a line are read.
    let mounts = "x".repeat(16 << 10) + "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    tree.write("proc/self/mountinfo", mounts);
    assert_eq!(bound(&ask(&tree)).0, LimitKind::Machine);
}

#[test]
fn a_long_list_of_mounts_is_read_to_its_end() {
    let tree = Tree::version_2("/a");
    tree.folder("/a", "4096", "max", 0, 0, 0);
    let mut mounts = "1 1 0:5 / /some/where rw - ext4 /dev/x rw\n".repeat(2000);
    mounts += &format!("1 1 0:5 / /{} rw - ext4 /dev/x rw\n", "long".repeat(10_000));
    mounts += "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
    tree.write("proc/self/mountinfo", mounts);
    let now = ask(&tree);
    assert_eq!(bound(&now).2, 4096);
    assert_eq!(why(&now, "/proc/self/mountinfo"), Some(Why::TooLong));
}

#[test]
fn the_real_system_is_read() {
    let now = millpond::pressure();
    let limit = now.limit().expect("every machine has memory");
    assert!(limit.bytes > 0 && limit.available() <= limit.bytes);
    assert!(
        now.machine()
            .is_some_and(|machine| machine.available <= machine.total)
    );
    assert!(now.unread().iter().all(|missing| missing.path != PathBuf::new()));
}
