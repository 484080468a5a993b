//! Answers the check that NVIDIA's runtime library makes before its first use of a device.
//!
//! The runtime sends a number and a time. The answer is an HMAC (RFC 2104) with the digest MD2 (RFC 1319) of both, of the driver's version,
//! and of the process, the thread, the tables and the devices. This is known from ZLUDA.
#![forbid(unsafe_code)]

use crate::thread;
use hmac::{Hmac, KeyInit, Mac};
use md2::Md2;

/// A question, and what both sides know.
#[derive(Debug)]
pub(crate) struct Question {
    /// The number of the question.
    pub(crate) version: u32,
    pub(crate) seconds: u64,
    /// The version of the driver.
    pub(crate) driver: u32,
    /// The addresses of two tables, and of the function that answers.
    pub(crate) modules: u64,
    pub(crate) handshake: u64,
    pub(crate) function: u64,
    pub(crate) devices: Vec<Identity>,
}

/// The identity of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) uuid: [u8; 16],
    pub(crate) domain: i32,
    pub(crate) bus: i32,
    pub(crate) slot: i32,
}

const KEY: [u8; 16] = [
    0x14, 0x6a, 0xdd, 0xae, 0x53, 0xa9, 0xa7, 0x52, 0xaa, 0x08, 0x41, 0x36, 0x0b, 0xf5, 0x5a, 0x9f,
];

/// Returns the answer. Questions with the last digits 0 and 1 have fixed answers.
pub(crate) fn answer(question: &Question) -> [u8; 16] {
    let fixed = |first: u64| {
        let second: u64 = 0x8ed3_83aa_1f4c_d1e8;
        let mut answer = [0; 16];
        answer[..8].copy_from_slice(&first.to_le_bytes());
        answer[8..].copy_from_slice(&second.to_le_bytes());
        answer
    };
    match question.version % 10 {
        0 => fixed(0x3341_181c_03cb_675c),
        1 => fixed(0x1841_181c_03cb_675c),
        _ => hmac(&KEY, &text(question, std::process::id(), thread::c_name())),
    }
}

/// Returns the text that is hashed.
fn text(question: &Question, process: u32, thread: u32) -> Vec<u8> {
    let mut text = Vec::new();
    for number in [question.driver, question.version, process, thread] {
        text.extend(number.to_le_bytes());
    }
    for number in [
        question.modules,
        question.handshake,
        question.function,
        question.seconds,
    ] {
        text.extend(number.to_le_bytes());
    }
    for device in &question.devices {
        text.extend(device.uuid);
        for number in [device.domain, device.bus, device.slot] {
            text.extend(number.to_le_bytes());
        }
    }
    text
}

/// Returns the HMAC of a text.
fn hmac(key: &[u8; 16], text: &[u8]) -> [u8; 16] {
    let mut mac = Hmac::<Md2>::new(&(*key).into());
    mac.update(text);
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_depends_on_every_field_of_the_question() {
        let question = |change: fn(&mut Question)| {
            let mut question = Question {
                version: 12_092,
                seconds: 1,
                driver: 12_080,
                modules: 2,
                handshake: 3,
                function: 4,
                devices: vec![Identity {
                    uuid: [5; 16],
                    domain: 0,
                    bus: 1,
                    slot: 0,
                }],
            };
            change(&mut question);
            answer(&question)
        };
        let answers = [
            question(|_| ()),
            question(|question| question.version += 1),
            question(|question| question.seconds += 1),
            question(|question| question.driver += 1),
            question(|question| question.modules += 1),
            question(|question| question.handshake += 1),
            question(|question| question.function += 1),
            question(|question| question.devices[0].bus += 1),
            question(|question| question.devices[0].uuid[15] += 1),
            question(|question| question.version = 12_090),
            question(|question| question.version = 12_091),
        ];
        let different: std::collections::HashSet<_> = answers.iter().collect();
        assert_eq!(different.len(), answers.len());
    }
}
