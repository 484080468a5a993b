//! Maps four handles, makes them accessible by one call, unmaps them by one call, and releases them.

use crate::card::Card;
use crate::driver::{Failed, SUCCESS, call, ok};
use crate::say;

const TABLE: &str = "Mapping";
const HANDLES: u64 = 4;

pub(super) fn run(card: &Card) -> Result<(), Failed> {
    let (driver, page) = (&card.driver, card.page);
    let all = HANDLES * page;
    say::table(TABLE, &["call", "answer", "microseconds"]);
    let at = card.reserve(2 * all)?;
    let mut handles = Vec::new();
    for number in 0..HANDLES {
        let handle = card.create(page)?;
        let place = at + number * page;
        let code = card.tell(TABLE, &format!("map handle {number}"), || {
            call!(driver, cuMemMap(place, page as usize, 0, handle, 0))
        });
        driver.check("cuMemMap", code)?;
        handles.push(handle);
    }
    let code = card.tell(TABLE, "set access over a half of a handle", || {
        card.access(at, page / 2)
    });
    say::check(
        "access to a part of a handle is refused",
        code != SUCCESS,
        &driver.name(code),
    );
    let one_access = card.tell(TABLE, "set access over four handles", || card.access(at, all));
    say::check(
        "one call sets access over several handles",
        one_access == SUCCESS,
        &driver.name(one_access),
    );
    let stream = card.stream()?;
    let filled = card.tell(TABLE, "fill all four with one memset", || {
        match call!(driver, cuMemsetD8Async(at, 7, all as usize, stream)) {
            SUCCESS => call!(driver, cuStreamSynchronize(stream)),
            code => code,
        }
    });
    say::check(
        "one memset fills four adjacent handles",
        filled == SUCCESS,
        &driver.name(filled),
    );
    let code = card.tell(TABLE, "unmap a half of a handle", || {
        call!(driver, cuMemUnmap(at, page as usize / 2))
    });
    say::check(
        "unmapping a part of a handle is refused",
        code != SUCCESS,
        &driver.name(code),
    );
    let middle = card.tell(TABLE, "unmap the second and the third handle by one call", || {
        call!(driver, cuMemUnmap(at + page, 2 * page as usize))
    });
    if middle == SUCCESS {
        for number in 1..3 {
            card.map(at + number * page, page, handles[number as usize])?;
        }
        driver.check("cuMemSetAccess", card.access(at + page, 2 * page))?;
    }
    let whole = card.tell(TABLE, "unmap four handles by one call", || {
        call!(driver, cuMemUnmap(at, all as usize))
    });
    say::check(
        "one unmap spans several handles",
        middle == SUCCESS && whole == SUCCESS,
        &format!(
            "two of four: {}, all: {}",
            driver.name(middle),
            driver.name(whole)
        ),
    );
    if whole != SUCCESS {
        for number in 0..HANDLES {
            card.tell(TABLE, &format!("unmap handle {number}"), || {
                call!(driver, cuMemUnmap(at + number * page, page as usize))
            });
        }
    }
    card.tell(TABLE, "unmap four handles again", || {
        call!(driver, cuMemUnmap(at, all as usize))
    });
    for (number, handle) in handles.iter().enumerate() {
        card.tell(TABLE, &format!("release handle {number}"), || {
            call!(driver, cuMemRelease(*handle))
        });
    }
    let shifted = card.create(2 * page)?;
    let code = card.tell(TABLE, "map the second half of a handle", || {
        call!(driver, cuMemMap(at, page as usize, page as usize, shifted, 0))
    });
    say::check(
        "mapping a part of a handle is refused",
        code != SUCCESS,
        &driver.name(code),
    );
    if code == SUCCESS {
        card.unmap(at, page)?;
    }
    ok!(driver, cuMemRelease(shifted))?;
    ok!(driver, cuMemAddressFree(at, 2 * all as usize))?;
    ok!(driver, cuStreamDestroy_v2(stream))
}
