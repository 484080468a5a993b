//! Parses protocol buffers field by field. This reader shares no code with the writer.
#![allow(dead_code, reason = "each test binary uses a part")]

/// A field's value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Number(u64),
    Double(f64),
    Bytes(Vec<u8>),
}

/// A message as its fields, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields(pub(crate) Vec<(u64, Value)>);

fn varint(bytes: &[u8], at: &mut usize) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = bytes[*at];
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return value;
        }
    }
    panic!("a number longer than ten bytes");
}

impl Fields {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut fields = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let key = varint(bytes, &mut at);
            let value = match key & 7 {
                0 => Value::Number(varint(bytes, &mut at)),
                1 => {
                    let eight: [u8; 8] = bytes[at..at + 8].try_into().expect("eight");
                    at += 8;
                    Value::Double(f64::from_le_bytes(eight))
                }
                2 => {
                    let length = varint(bytes, &mut at) as usize;
                    at += length;
                    Value::Bytes(bytes[at - length..at].to_vec())
                }
                kind => panic!("a field of kind {kind}"),
            };
            fields.push((key >> 3, value));
        }
        Self(fields)
    }

    pub(crate) fn all(&self, field: u64) -> impl Iterator<Item = &Value> {
        let has = move |(number, _): &&(u64, Value)| *number == field;
        self.0.iter().filter(has).map(|(_, value)| value)
    }

    pub(crate) fn messages(&self, field: u64) -> Vec<Self> {
        let of = |value: &Value| match value {
            Value::Bytes(bytes) => Self::of(bytes),
            other => panic!("{other:?} is no message"),
        };
        self.all(field).map(of).collect()
    }

    pub(crate) fn number(&self, field: u64) -> Option<u64> {
        match self.all(field).next() {
            Some(Value::Number(number)) => Some(*number),
            None => None,
            other => panic!("{other:?} is not a number"),
        }
    }

    pub(crate) fn double(&self, field: u64) -> Option<f64> {
        match self.all(field).next() {
            Some(Value::Double(number)) => Some(*number),
            None => None,
            other => panic!("{other:?} is no double"),
        }
    }

    pub(crate) fn texts(&self, field: u64) -> Vec<String> {
        let of = |value: &Value| match value {
            Value::Bytes(bytes) => String::from_utf8(bytes.clone()).expect("UTF-8"),
            other => panic!("{other:?} is not a text"),
        };
        self.all(field).map(of).collect()
    }

    pub(crate) fn packed(&self, field: u64) -> Vec<u64> {
        let mut numbers = Vec::new();
        for value in self.all(field) {
            match value {
                Value::Number(number) => numbers.push(*number),
                Value::Bytes(bytes) => {
                    let mut at = 0;
                    while at < bytes.len() {
                        numbers.push(varint(bytes, &mut at));
                    }
                }
                Value::Double(_) => panic!("no numbers"),
            }
        }
        numbers
    }
}
