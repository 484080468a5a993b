//! Queries the flags and attributes of the first and the last byte of registered memory, and for comparison those of allocated pinned
//! memory.

use crate::card::Card;
use crate::driver::{Failed, SUCCESS, call, ok};
use crate::pages;
use crate::say::{self, row};
use serde_json::{Value, json};

const TABLE: &str = "Registered memory";
const BYTES: usize = 1 << 20;
/// A size that ends in the middle of a page.
const ODD: usize = BYTES - 1000;

/// The values of `CUpointer_attribute` that return a number of at most eight bytes.
const ATTRIBUTES: [(&str, i32); 7] = [
    ("memory type", 2),
    ("device address", 3),
    ("host address", 4),
    ("managed", 8),
    ("range start", 11),
    ("range bytes", 12),
    ("mapped", 13),
];

pub(super) fn run(card: &Card) -> Result<(), Failed> {
    let columns = ["memory", "byte", "cuMemHostGetFlags", "cuMemHostGetDevicePointer"];
    let columns: Vec<&str> = columns
        .into_iter()
        .chain(ATTRIBUTES.iter().map(|(name, _)| *name))
        .collect();
    say::note("Each address is shown as its distance from the first byte.");
    say::table(TABLE, &columns);
    let driver = &card.driver;
    let mut flags = Vec::new();
    for (name, asked, bytes) in [
        ("registered, no flags", 0, BYTES),
        ("registered, portable", 1, BYTES),
        ("registered, mapped", 2, BYTES),
        ("registered, portable and mapped", 3, BYTES),
        ("registered, its end within a page", 0, ODD),
    ] {
        let at = pages::map(BYTES).ok_or_else(|| Failed("the host is out of pages".to_owned()))?;
        let code = call!(driver, cuMemHostRegister_v2(at, bytes, asked));
        if code == SUCCESS {
            flags.extend(rows(card, name, at, bytes));
            ok!(driver, cuMemHostUnregister(at))?;
        } else {
            row!(TABLE, name, "-", format!("refused: {}", driver.name(code)));
        }
        pages::unmap(at, BYTES);
    }
    for (name, asked) in [("allocated, no flags", 0), ("allocated, portable and mapped", 3)] {
        let mut at = 0;
        ok!(driver, cuMemHostAlloc(&raw mut at, BYTES, asked))?;
        rows(card, name, at, BYTES);
        ok!(driver, cuMemFreeHost(at))?;
    }
    let plain = pages::map(BYTES).ok_or_else(|| Failed("the host is out of pages".to_owned()))?;
    rows(card, "neither registered nor allocated", plain, BYTES);
    pages::unmap(plain, BYTES);
    say::check(
        "the flags of registered memory can be queried",
        flags.iter().all(|code| *code == SUCCESS),
        &format!(
            "{} of {} calls succeeded",
            flags.iter().filter(|code| **code == SUCCESS).count(),
            flags.len()
        ),
    );
    Ok(())
}

/// Writes a row for the first byte and one for the last byte. Returns the codes of `cuMemHostGetFlags`.
fn rows(card: &Card, name: &str, at: usize, bytes: usize) -> [i32; 2] {
    let driver = &card.driver;
    let away = |address: u64| match address.wrapping_sub(at as u64) as i64 {
        _ if address == 0 => json!("null"),
        distance if distance.unsigned_abs() < 1 << 30 => json!(format!("{distance:+}")),
        _ => json!("elsewhere"),
    };
    [("first", at), ("last", at + bytes - 1)].map(|(which, place)| {
        let mut flags = 0;
        let code = call!(driver, cuMemHostGetFlags(&raw mut flags, place));
        let told = match code {
            SUCCESS => json!(format!("{flags:#x}")),
            code => json!(driver.name(code)),
        };
        let mut device = 0;
        let mapped = match call!(driver, cuMemHostGetDevicePointer_v2(&raw mut device, place, 0)) {
            SUCCESS => away(device),
            code => json!(driver.name(code)),
        };
        let mut cells = vec![json!(name), json!(which), told, mapped];
        cells.extend(ATTRIBUTES.iter().map(|(name, number)| {
            let mut value = 0u64;
            match call!(
                driver,
                cuPointerGetAttribute((&raw mut value).cast(), *number, place as u64)
            ) {
                SUCCESS if name.ends_with("address") || name.ends_with("start") => away(value),
                SUCCESS => Value::from(value),
                code => json!(driver.name(code)),
            }
        }));
        say::cells(TABLE, &cells);
        code
    })
}
