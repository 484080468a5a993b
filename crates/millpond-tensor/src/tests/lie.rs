//! Views with any layout in a larger tensor, and checks that only their elements were written.

use super::cases::Case;
use super::model::{Model, indices};
use super::views::order;
use super::*;

/// The layout of a view in a larger tensor: the order of its dimensions there, the steps, and the number of elements
/// before it.
#[derive(Clone, Debug)]
pub(super) struct Lie {
    order: usize,
    steps: Vec<usize>,
    before: Vec<usize>,
}

/// The largest step of a layout.
const STEPS: usize = 3;

pub(super) fn lie() -> impl Strategy<Value = Lie> {
    let numbers = |most: usize| proptest::collection::vec(0..most, MAX_RANK);
    let order = prop_oneof![2 => Just(0), 3 => 0..64usize];
    let plain = prop_oneof![Just(true), Just(false)];
    (order, numbers(STEPS), numbers(STEPS), plain).prop_map(|(order, steps, before, plain)| Lie {
        order: if plain { usize::MAX } else { order },
        steps: steps
            .iter()
            .map(|step| if plain { 1 } else { step + 1 })
            .collect(),
        before: before.iter().map(|many| if plain { 0 } else { *many }).collect(),
    })
}

/// Returns the layout with the most elements that [`lie`] makes.
pub(super) fn largest() -> Lie {
    Lie {
        order: 0,
        steps: vec![STEPS; MAX_RANK],
        before: vec![STEPS - 1; MAX_RANK],
    }
}

/// Returns the order of the dimensions in the larger tensor.
pub(super) fn places(lie: &Lie, rank: usize) -> Vec<usize> {
    if lie.order == usize::MAX {
        (0..rank).collect()
    } else {
        order(rank, lie.order)
    }
}

/// A larger tensor, and the layout of the view in it.
pub(super) struct Larger<T> {
    whole: Tensor,
    order: Vec<usize>,
    lie: Lie,
    shape: Vec<usize>,
    filler: T,
}

impl<T: Case> Larger<T> {
    pub(super) fn new(model: &Model<T>, lie: &Lie) -> Self {
        let rank = model.shape.len();
        let order = places(lie, rank);
        let size = |at: usize| lie.before[at] + model.shape[order[at]] * lie.steps[at];
        let sizes: Vec<usize> = (0..rank).map(size).collect();
        let filler = T::of(99);
        let mut larger = Self {
            whole: Tensor::full_in(&fake::unpooled(), &sizes, filler).expect("room"),
            order,
            lie: lie.clone(),
            shape: model.shape.clone(),
            filler,
        };
        for index in indices(&model.shape) {
            let place = larger.place(&index);
            larger
                .whole
                .view_mut()
                .expect("alone")
                .set(&place, model.at(&index))
                .expect("inside");
        }
        larger
    }

    fn place(&self, index: &[usize]) -> Vec<usize> {
        let at = self.order.iter().enumerate();
        at.map(|(at, dim)| self.lie.before[at] + index[*dim] * self.lie.steps[at])
            .collect()
    }

    fn back(&self) -> Vec<usize> {
        (0..self.order.len())
            .map(|dim| self.order.iter().position(|of| *of == dim).expect("each once"))
            .collect()
    }

    pub(super) fn view(&self) -> TensorRef<'_> {
        let mut view = self.whole.view().expect("host");
        for at in 0..self.order.len() {
            let (before, step) = (self.lie.before[at], self.lie.steps[at]);
            view = view
                .slice(at, before..)
                .and_then(|view| view.step(at, step))
                .expect("inside");
        }
        let view = view.permute(self.back()).expect("each once");
        assert_eq!(view.shape(), self.shape);
        view
    }

    pub(super) fn view_mut(&mut self) -> TensorMut<'_> {
        let back = self.back();
        let mut view = self.whole.view_mut().expect("alone");
        for at in 0..self.order.len() {
            let (before, step) = (self.lie.before[at], self.lie.steps[at]);
            view = view
                .slice(at, before..)
                .and_then(|view| view.step(at, step))
                .expect("inside");
        }
        view.permute(back).expect("each once")
    }

    /// Checks that the view's elements are the model's and that all others are unchanged.
    pub(super) fn agrees(&self, model: &Model<T>) {
        assert_eq!(self.view().to_vec::<T>().expect("its type"), model.values);
        let mut places: Vec<Vec<usize>> = indices(&model.shape)
            .iter()
            .map(|index| self.place(index))
            .collect();
        places.sort();
        let all = self.whole.to_vec::<T>().expect("its type");
        for (index, element) in indices(self.whole.shape()).iter().zip(all) {
            assert!(
                places.binary_search(index).is_ok() || element == self.filler,
                "{index:?} was written"
            );
        }
    }
}
