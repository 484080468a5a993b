//! Measures how much address space can be reserved, and how exact the limits of the driver's pools are.

use crate::card::Card;
use crate::driver::{Failed, PoolProperties, SUCCESS, call, ok};
use crate::say::{self, row};
use serde_json::Value;
use std::time::Instant;

const RESERVED: &str = "Address space";
/// The driver rounds the limit of a pool up to a multiple of this many MiB. Its documentation says only that it may round.
const ROUNDED: usize = 32;
const POOLS: &str = "Limits of the driver's pools";
const TIB: u64 = 1 << 40;
const MIB: usize = 1 << 20;

pub(super) fn run(card: &Card) -> Result<(), Failed> {
    say::table(RESERVED, &["reserved", "answer", "microseconds"]);
    let ask = |what: &str, bytes: u64| {
        let (mut at, begun) = (0, Instant::now());
        let code = call!(
            card.driver,
            cuMemAddressReserve(&raw mut at, bytes as usize, 0, 0, 0)
        );
        let taken = begun.elapsed().as_secs_f64();
        row!(RESERVED, what, card.driver.name(code), say::us(taken));
        (code == SUCCESS).then_some((at, bytes))
    };
    let eight = ask(
        "eight times the memory",
        (8 * card.total).next_multiple_of(card.page),
    );
    say::check(
        "eight times the memory can be reserved",
        eight.is_some(),
        &format!("{} GiB", (8 * card.total) >> 30),
    );
    let first = ask("64 TiB", 64 * TIB);
    let second = ask("64 TiB more", 64 * TIB);
    let pebibyte = ask("1 PiB", 1024 * TIB);
    say::check(
        "a request for more addresses than exist is refused, so that a smaller one can follow",
        pebibyte.is_none(),
        if pebibyte.is_none() {
            "1 PiB is refused"
        } else {
            "1 PiB is reserved"
        },
    );
    for (at, bytes) in [eight, first, second, pebibyte].into_iter().flatten() {
        ok!(card.driver, cuMemAddressFree(at, bytes as usize))?;
    }
    let mut most = 0;
    for shift in (30..52).rev() {
        let bytes: u64 = 1 << shift;
        let mut at = 0;
        if call!(
            card.driver,
            cuMemAddressReserve(&raw mut at, bytes as usize, 0, 0, 0)
        ) == SUCCESS
        {
            ok!(card.driver, cuMemAddressFree(at, bytes as usize))?;
            most = bytes;
            break;
        }
    }
    row!(
        RESERVED,
        "the largest power of two at once",
        format!("{} GiB", most >> 30),
        Value::Null
    );
    pools(card)
}

/// Allocates blocks of 1 MiB from pools with a limit, each until the pool refuses.
fn pools(card: &Card) -> Result<(), Failed> {
    let driver = &card.driver;
    say::table(
        POOLS,
        &[
            "requested limit, MiB",
            "creation",
            "allocated blocks of 1 MiB",
            "then",
            "reserved, MiB",
        ],
    );
    let mut rounded = true;
    let stream = card.stream()?;
    for limit in [1, 3, 33] {
        let properties = PoolProperties::on(card.device, limit * MIB);
        let mut pool = 0;
        let code = call!(driver, cuMemPoolCreate(&raw mut pool, &raw const properties));
        if code != SUCCESS {
            rounded = false;
            row!(POOLS, limit, driver.name(code));
            continue;
        }
        let mut blocks = Vec::new();
        let mut last = SUCCESS;
        while blocks.len() < 256 && last == SUCCESS {
            let mut at = 0;
            last = call!(driver, cuMemAllocFromPoolAsync(&raw mut at, MIB, pool, stream));
            if last == SUCCESS {
                blocks.push(at);
            }
        }
        let (mut reserved, reserved_now) = (0u64, 5);
        let _ = call!(
            driver,
            cuMemPoolGetAttribute(pool, reserved_now, (&raw mut reserved).cast())
        );
        rounded &= blocks.len() == limit.next_multiple_of(ROUNDED);
        row!(POOLS, limit, "0", blocks.len(), driver.name(last), reserved >> 20);
        for at in blocks {
            ok!(driver, cuMemFreeAsync(at, stream))?;
        }
        card.synchronize(stream)?;
        ok!(driver, cuMemPoolDestroy(pool))?;
    }
    say::check(
        "a limit of a driver's pool is rounded up to whole 32 MiB",
        rounded,
        "see the table",
    );
    ok!(driver, cuStreamDestroy_v2(stream))
}
