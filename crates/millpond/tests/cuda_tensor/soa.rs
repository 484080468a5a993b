//! Structures of arrays as arguments of kernels.

use crate::{device, each_call_fails, emulator, in_any_order, in_children};
use millpond::Soa;
use millpond::cuda::{CudaDevice, CudaModule, CudaStream, DevicePool, DeviceSoa};
use std::error::Error;

/// The parameters of `axpy(y, x, a, n)`: the height changes by the speed times the duration.
#[derive(Clone, Copy, Debug, PartialEq, Soa)]
struct Body {
    height: f32,
    speed: f32,
}

/// Its fields have many sizes, and none has the offset that it has in the structure.
#[derive(Clone, Copy, Debug, PartialEq, Soa)]
struct Reading {
    flag: u8,
    place: [u16; 3],
    result: f64,
    r#type: u32,
}

const LEN: usize = 1000;

fn bodies() -> Vec<Body> {
    let body = |at: u16| Body {
        height: f32::from(at),
        speed: 1.0 - f32::from(at % 3),
    };
    (0..LEN as u16).map(body).collect()
}

const PTX: &str =
    ".version 7.0\n.target sm_70\n.visible .entry axpy() { ret; }\n.visible .entry scale() { ret; }";

/// Advances by half a second on another stream, then negates all speeds with a kernel on one field.
fn fall(device: &CudaDevice, pool: &DevicePool) -> Result<Vec<Body>, Box<dyn Error>> {
    let (here, there) = (CudaStream::new(device)?, CudaStream::new(device)?);
    let mut arrays = BodyVec::try_from_slice(&bodies())?;
    let mut soa = DeviceSoa::<Body>::from_arrays(pool, &arrays, &here)?;
    let module = CudaModule::load(device, PTX)?;
    let axpy = module.kernel("axpy")?;
    let launch = axpy
        .launch(&there)
        .grid(LEN as u32)
        .arg_mut(&mut soa)
        .arg(0.5f32)
        .arg(LEN as u64);
    // SAFETY: the fields are the first two parameters, and each has this number of elements.
    unsafe { launch.launch() }?;
    let mut turned = pool.alloc::<f32>(LEN, &there)?;
    let speed = soa.field("speed").ok_or("there is no such field")?;
    let scale = module.kernel("scale")?;
    let launch = scale
        .launch(&there)
        .grid(LEN as u32)
        .arg_mut(&mut turned)
        .arg(speed);
    // SAFETY: both have this number of elements.
    unsafe { launch.arg(-1.0f32).arg(LEN as u64).launch() }?;
    soa.copy_to_host(&mut arrays)?;
    arrays.speed_mut().copy_from_slice(&turned.to_vec()?);
    Ok(arrays.to_vec())
}

fn is_right(found: &[Body]) {
    let expected = bodies().into_iter().map(|body| Body {
        height: body.height + body.speed / 2.0,
        speed: -body.speed,
    });
    assert!(found.iter().copied().eq(expected));
}

#[test]
fn fields_are_arguments_of_kernels() {
    if emulator::is_left_out("its kernels have no code for a real device") {
        return;
    }
    in_any_order("soa::fields_are_arguments_of_kernels", 10, || {
        let (device, pool, _) = device().expect("a device");
        is_right(&fall(&device, &pool).expect("nothing fails"));
        assert_eq!(emulator::findings(), (0, String::new()));
        assert_eq!(pool.stats().requested.current, 0);
    });
}

#[test]
fn each_call_fails_in_turn() {
    in_children(
        "soa::each_call_fails_in_turn",
        std::iter::once("strict:on".to_owned()),
        || {
            let (device, pool, _) = device().expect("a device");
            each_call_fails(&pool, || fall(&device, &pool).map(|found| is_right(&found)));
        },
    );
}

#[test]
fn all_fields_are_copied_to_the_device_and_back() {
    let Some((_device, pool, stream)) = device() else {
        return;
    };
    let reading = |at: u16| Reading {
        flag: at as u8,
        place: [at, at + 1, at + 2],
        result: f64::from(at) / 3.0,
        r#type: u32::from(at) << 8,
    };
    let readings: Vec<Reading> = (0..777).map(reading).collect();
    let arrays = ReadingVec::try_from_slice(&readings).expect("memory");
    let mut soa = DeviceSoa::<Reading>::from_arrays(&pool, &arrays, &stream).expect("memory");
    assert_eq!((soa.len(), soa.is_empty()), (777, false));
    let names = ["flag", "place", "result", "type"];
    let fields = names.map(|name| soa.field(name).expect("it is there"));
    assert!(
        fields
            .iter()
            .all(|field| field.address().is_multiple_of(256) && field.len() == 777)
    );
    assert!(fields.is_sorted_by_key(|field| field.address()));
    assert!(soa.field("none such").is_none());
    let mut back = ReadingVec::try_from_slice(&vec![reading(0); 777]).expect("memory");
    soa.copy_to_host(&mut back).expect("a copy");
    assert_eq!(back.to_vec(), readings);
    back.truncate(776);
    let error = soa.copy_to_host(&mut back).expect_err("one is missing");
    assert_eq!(
        error.to_string(),
        "expected 777 elements, got 776: both sides of a copy must have the same length"
    );
    assert!(soa.copy_from_host(&back).is_err());

    let none = ReadingVec::new().expect("nothing");
    let none = DeviceSoa::<Reading>::from_arrays(&pool, &none, &stream).expect("nothing");
    assert!(none.is_empty() && none.field("flag").is_some_and(|field| field.address() == 0));
    assert_eq!(
        format!("{none:?}"),
        "DeviceSoa { of: \"Reading\", len: 0, device: Cuda(0), .. }"
    );
}
