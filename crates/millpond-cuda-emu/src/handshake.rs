//! The question with which NVIDIA's runtime library checks, before its first use of a device, that it and the driver know the same
//! driver, process, thread, tables and devices.
//!
//! The answer is an HMAC (RFC 2104) of these facts with the digest MD2 (RFC 1319). This is known from ZLUDA.
#![forbid(unsafe_code)]

use crate::thread;

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

/// Returns the HMAC of a text with a key of one block.
fn hmac(key: &[u8; 16], text: &[u8]) -> [u8; 16] {
    let inner = md2(&[&key.map(|byte| byte ^ 0x36)[..], text].concat());
    md2(&[&key.map(|byte| byte ^ 0x5c)[..], &inner].concat())
}

/// Returns the MD2 digest of a text.
fn md2(text: &[u8]) -> [u8; 16] {
    let missing = 16 - text.len() % 16;
    let mut padded = text.to_vec();
    padded.resize(text.len() + missing, missing as u8);
    let mut checksum = [0_u8; 16];
    let mut last = 0;
    for block in padded.chunks_exact(16) {
        for (sum, byte) in checksum.iter_mut().zip(block) {
            *sum ^= PERMUTATION[usize::from(byte ^ last)];
            last = *sum;
        }
    }
    padded.extend(checksum);
    let mut state = [0_u8; 48];
    for block in padded.chunks_exact(16) {
        for (index, byte) in block.iter().enumerate() {
            state[16 + index] = *byte;
            state[32 + index] = *byte ^ state[index];
        }
        let mut carried = 0_u8;
        for round in 0..18 {
            for byte in &mut state {
                *byte ^= PERMUTATION[usize::from(carried)];
                carried = *byte;
            }
            carried = carried.wrapping_add(round);
        }
    }
    let mut digest = [0; 16];
    digest.copy_from_slice(&state[..16]);
    digest
}

/// The permutation of MD2, which is made of the digits of pi.
#[rustfmt::skip]
const PERMUTATION: [u8; 256] = [
    41, 46, 67, 201, 162, 216, 124, 1, 61, 54, 84, 161, 236, 240, 6, 19,
    98, 167, 5, 243, 192, 199, 115, 140, 152, 147, 43, 217, 188, 76, 130, 202,
    30, 155, 87, 60, 253, 212, 224, 22, 103, 66, 111, 24, 138, 23, 229, 18,
    190, 78, 196, 214, 218, 158, 222, 73, 160, 251, 245, 142, 187, 47, 238, 122,
    169, 104, 121, 145, 21, 178, 7, 63, 148, 194, 16, 137, 11, 34, 95, 33,
    128, 127, 93, 154, 90, 144, 50, 39, 53, 62, 204, 231, 191, 247, 151, 3,
    255, 25, 48, 179, 72, 165, 181, 209, 215, 94, 146, 42, 172, 86, 170, 198,
    79, 184, 56, 210, 150, 164, 125, 182, 118, 252, 107, 226, 156, 116, 4, 241,
    69, 157, 112, 89, 100, 113, 135, 32, 134, 91, 207, 101, 230, 45, 168, 2,
    27, 96, 37, 173, 174, 176, 185, 246, 28, 70, 97, 105, 52, 64, 126, 15,
    85, 71, 163, 35, 221, 81, 175, 58, 195, 92, 249, 206, 186, 197, 234, 38,
    44, 83, 13, 110, 133, 40, 132, 9, 211, 223, 205, 244, 65, 129, 77, 82,
    106, 220, 55, 200, 108, 193, 171, 250, 36, 225, 123, 8, 12, 189, 177, 74,
    120, 136, 149, 139, 227, 99, 232, 109, 233, 203, 213, 254, 59, 0, 29, 57,
    242, 239, 183, 14, 102, 88, 208, 228, 166, 119, 114, 248, 235, 117, 75, 10,
    49, 68, 80, 180, 143, 237, 31, 26, 219, 153, 141, 51, 159, 17, 131, 20,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn md2_agrees_with_the_rfc() {
        for (text, digest) in [
            ("", "8350e5a3e24c153df2275c9f80692773"),
            ("abc", "da853b0d3f88d99b30283a69e6ded6bb"),
            ("abcdefghijklmnopqrstuvwxyz", "4e8ddff3650292ab5a4108c3aa47940b"),
        ] {
            assert_eq!(hex(&md2(text.as_bytes())), digest, "{text}");
        }
    }

    #[test]
    fn the_answer_depends_on_everything() {
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
