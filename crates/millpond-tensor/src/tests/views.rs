//! Compares chains of views with the model, including refused steps.

use super::cases::Case;
use super::model::Model;
use super::*;

/// A step from one view to another. Numbers are taken modulo the size, or modulo slightly more.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Slice(usize, usize, usize),
    Every(usize, usize),
    Select(usize, usize),
    Transpose(usize, usize),
    Permute(usize),
    Reshape(usize),
    Broadcast(usize, usize),
    Squeeze(usize),
    Unsqueeze(usize),
}

pub(super) fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    let n = 0..64usize;
    let step = prop_oneof![
        (n.clone(), n.clone(), n.clone()).prop_map(|(dim, a, b)| Step::Slice(dim, a, b)),
        (n.clone(), 0..4usize).prop_map(|(dim, step)| Step::Every(dim, step)),
        (n.clone(), n.clone()).prop_map(|(dim, at)| Step::Select(dim, at)),
        (n.clone(), n.clone()).prop_map(|(a, b)| Step::Transpose(a, b)),
        n.clone().prop_map(Step::Permute),
        n.clone().prop_map(Step::Reshape),
        (n.clone(), 0..4usize).prop_map(|(dim, size)| Step::Broadcast(dim, size)),
        n.clone().prop_map(Step::Squeeze),
        n.prop_map(Step::Unsqueeze),
    ];
    proptest::collection::vec(step, 0..most)
}

pub(super) fn shape() -> impl Strategy<Value = Vec<usize>> {
    let size = prop_oneof![8 => 1..5usize, 1 => Just(0), 1 => Just(7)];
    proptest::collection::vec(size, 0..5)
}

/// Returns an order of a number of dimensions, selected by the seed.
pub(super) fn order(rank: usize, mut seed: usize) -> Vec<usize> {
    let mut left: Vec<usize> = (0..rank).collect();
    let mut order = Vec::new();
    while !left.is_empty() {
        order.push(left.remove(seed % left.len()));
        seed = seed / 3 + 7;
    }
    order
}

/// Returns a shape with a number of elements, selected by the seed: factors of the number, including ones.
fn factors(mut elements: usize, mut seed: usize) -> Vec<usize> {
    if elements == 0 {
        return vec![seed % 3, 0, 2];
    }
    let mut shape = Vec::new();
    while elements > 1 && shape.len() < 6 {
        let factor = (1..=elements).filter(|factor| elements.is_multiple_of(*factor));
        let factors: Vec<usize> = factor.collect();
        let factor = factors[seed % factors.len()];
        shape.push(factor);
        elements /= factor;
        seed = seed / 2 + 5;
    }
    if elements > 1 {
        shape.push(elements);
    }
    shape
}

/// Applies one step to both. Returns `None` if both refuse it.
pub(super) fn take<T: Case>(tensor: &Tensor, model: &Model<T>, step: &Step) -> Option<(Tensor, Model<T>)> {
    let rank = model.shape.len();
    // Sometimes the dimension is one too many.
    let dim = |number: usize| number % (rank + 1);
    let size = |dim: usize| model.shape.get(dim).copied();
    match *step {
        Step::Slice(d, a, b) => {
            let dim = dim(d);
            let most = size(dim).unwrap_or(3) + 2;
            let (start, end) = (a % most, b % most);
            let ok = size(dim).is_some_and(|size| start <= end && end <= size);
            let view = tensor.slice(dim, start..end);
            assert_eq!(view.is_ok(), ok);
            view.ok().map(|view| (view, model.slice(dim, start, end)))
        }
        Step::Every(d, by) => {
            let dim = dim(d);
            let view = tensor.step(dim, by);
            assert_eq!(view.is_ok(), size(dim).is_some() && by > 0);
            view.ok().map(|view| (view, model.step(dim, by)))
        }
        Step::Select(d, at) => {
            let dim = dim(d);
            let at = at % (size(dim).unwrap_or(0) + 1);
            let view = tensor.select(dim, at);
            assert_eq!(view.is_ok(), size(dim).is_some_and(|size| at < size));
            view.ok().map(|view| (view, model.select(dim, at)))
        }
        Step::Transpose(a, b) => {
            let (a, b) = (dim(a), dim(b));
            let view = tensor.transpose(a, b);
            assert_eq!(view.is_ok(), a < rank && b < rank);
            let mut order: Vec<usize> = (0..rank).collect();
            view.ok().map(|view| {
                order.swap(a, b);
                (view, model.permute(&order))
            })
        }
        Step::Permute(seed) => {
            let order = order(rank, seed);
            for wrong in [[&order[..], &[0]].concat(), vec![rank; rank + 1]] {
                assert!(tensor.permute(wrong).is_err());
            }
            if rank > 1 {
                assert!(tensor.permute(vec![0; rank]).is_err());
            }
            Some((tensor.permute(&order).expect("each once"), model.permute(&order)))
        }
        Step::Reshape(seed) => {
            let shape = factors(model.values.len(), seed);
            assert!(tensor.reshape([model.values.len() + 1]).is_err());
            let copied = tensor.reshaped(&shape);
            match tensor.reshape(&shape) {
                Ok(view) => {
                    assert!(copied.expect("a view").shares_storage_with(tensor));
                    Some((view, model.reshape(&shape)))
                }
                Err(TensorError::NotAView { .. }) => {
                    let copied = copied.expect("room");
                    assert!(!copied.is_shared() && copied.is_contiguous());
                    Some((copied.into_tensor(), model.reshape(&shape)))
                }
                Err(error) => panic!("{error}"),
            }
        }
        Step::Broadcast(d, many) => {
            let mut shape = model.shape.clone();
            let dim = dim(d);
            let ok = match shape.get_mut(dim) {
                Some(size) => {
                    let old = std::mem::replace(size, many);
                    old == 1 || old == many
                }
                None => {
                    shape.insert(0, many);
                    shape.len() <= MAX_RANK
                }
            };
            let ok = ok && model.values.len() * many < 4000;
            if model.values.len() * many >= 4000 {
                return None;
            }
            let view = tensor.broadcast_to(&shape);
            assert_eq!(view.is_ok(), ok, "{:?} to {shape:?}", model.shape);
            view.ok().map(|view| (view, model.broadcast_to(&shape)))
        }
        Step::Squeeze(d) => {
            let dim = dim(d);
            let view = tensor.squeeze(dim);
            assert_eq!(view.is_ok(), size(dim) == Some(1));
            view.ok().map(|view| (view, model.select(dim, 0)))
        }
        Step::Unsqueeze(d) => {
            let dim = d % (rank + 2);
            let view = tensor.unsqueeze(dim);
            assert_eq!(view.is_ok(), dim <= rank && rank < MAX_RANK);
            let mut shape = model.shape.clone();
            view.ok().map(|view| {
                shape.insert(dim, 1);
                (view, model.reshape(&shape))
            })
        }
    }
}

fn agree<T: Case>(tensor: &Tensor, model: &Model<T>) {
    assert_eq!(tensor.shape(), model.shape);
    assert_eq!(tensor.len(), model.values.len());
    assert_eq!(tensor.to_vec::<T>().expect("its type"), model.values);
    for index in model::indices(&model.shape).iter().take(50) {
        assert_eq!(tensor.get(index).expect("inside"), model.at(index).into());
    }
    match tensor.as_slice::<T>() {
        Ok(slice) => assert!(tensor.is_contiguous() && slice == model.values),
        Err(_) => assert!(!tensor.is_contiguous()),
    }
    let contiguous = tensor.to_contiguous().expect("room");
    assert_eq!(contiguous.is_shared(), tensor.is_contiguous());
    assert_eq!(contiguous.as_slice::<T>().expect("contiguous"), model.values);
    for dim in 0..model.shape.len() {
        for size in [1, 2, 5] {
            let batches = tensor.batches(dim, size).expect("a size");
            let starts: Vec<usize> = (0..model.shape[dim]).step_by(size).collect();
            assert_eq!(batches.len(), starts.len());
            let expected = starts.iter().map(|start| {
                let end = (start + size).min(model.shape[dim]);
                model.slice(dim, *start, end)
            });
            let backwards = batches.clone().rev();
            for (batch, expected) in batches.zip(expected.clone()) {
                assert!(batch.shares_storage_with(tensor));
                assert_eq!(batch.shape(), expected.shape);
                assert_eq!(batch.to_vec::<T>().expect("its type"), expected.values);
            }
            for (batch, expected) in backwards.zip(expected.rev()) {
                assert_eq!(batch.to_vec::<T>().expect("its type"), expected.values);
            }
        }
    }
}

pub(super) fn start<T: Case>(shape: &[usize]) -> (Tensor, Model<T>) {
    let mut next = 0;
    let model = Model::from_fn(shape, |_| {
        next += 1;
        T::of(next)
    });
    let source = fake::unpooled();
    let tensor = Tensor::from_slice_in(&source, &model.values, shape).expect("room");
    (tensor, model)
}

fn chain<T: Case>(shape: &[usize], steps: &[Step]) {
    let (mut tensor, mut model) = start::<T>(shape);
    agree(&tensor, &model);
    for step in steps {
        if let Some(next) = take(&tensor, &model, step) {
            (tensor, model) = next;
            agree(&tensor, &model);
        }
    }
}

type Chain = fn(&[usize], &[Step]);

/// Elements of each size and of each display style. Types whose values reveal more of the layout are more frequent.
const CHAINS: [Chain; 14] = [
    chain::<i32>,
    chain::<i32>,
    chain::<i64>,
    chain::<u64>,
    chain::<u32>,
    chain::<i16>,
    chain::<u16>,
    chain::<i8>,
    chain::<u8>,
    chain::<f32>,
    chain::<f64>,
    chain::<[f32; 2]>,
    chain::<[f64; 2]>,
    #[cfg(feature = "half")]
    chain::<half::f16>,
    #[cfg(not(feature = "half"))]
    chain::<f32>,
];

proptest! {
    #![proptest_config(config(600))]

    // Copies come from the default pool, which Miri cannot run.
    #[test]
    #[cfg_attr(miri, ignore)]
    fn chains_of_views_agree_with_index_arithmetic(
        shape in shape(),
        steps in steps(12),
        which in 0..CHAINS.len(),
    ) {
        CHAINS[which](&shape, &steps);
    }
}
