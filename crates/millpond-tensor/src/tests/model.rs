//! The model: every step uses index arithmetic, and models share no elements.

/// A shape, and the values in order.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Model<T> {
    pub(super) shape: Vec<usize>,
    pub(super) values: Vec<T>,
}

/// Returns all indices of a shape in order.
pub(crate) fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for size in shape {
        let longer = all
            .iter()
            .flat_map(|index: &Vec<usize>| (0..*size).map(move |at| [index.as_slice(), &[at]].concat()));
        all = longer.collect();
    }
    all
}

impl<T: Clone> Model<T> {
    pub(super) fn from_fn(shape: &[usize], value: impl FnMut(&[usize]) -> T) -> Self {
        let mut value = value;
        Self {
            shape: shape.to_vec(),
            values: indices(shape).iter().map(|index| value(index)).collect(),
        }
    }

    pub(super) fn at(&self, index: &[usize]) -> T {
        assert_eq!(index.len(), self.shape.len());
        let place = index.iter().zip(&self.shape).fold(0, |place, (at, size)| {
            assert!(at < size);
            place * size + at
        });
        self.values[place].clone()
    }

    /// Returns a model of a shape whose elements are those of this one at other indices.
    fn picked(&self, shape: &[usize], from: impl Fn(&[usize]) -> Vec<usize>) -> Self {
        Self::from_fn(shape, |index| self.at(&from(index)))
    }

    fn sized(&self, dim: usize, size: usize) -> Vec<usize> {
        let mut shape = self.shape.clone();
        shape[dim] = size;
        shape
    }

    pub(super) fn slice(&self, dim: usize, start: usize, end: usize) -> Self {
        self.picked(&self.sized(dim, end - start), |index| {
            let mut from = index.to_vec();
            from[dim] += start;
            from
        })
    }

    pub(super) fn step(&self, dim: usize, step: usize) -> Self {
        let size = (0..self.shape[dim]).step_by(step).count();
        self.picked(&self.sized(dim, size), |index| {
            let mut from = index.to_vec();
            from[dim] *= step;
            from
        })
    }

    pub(super) fn select(&self, dim: usize, at: usize) -> Self {
        let mut shape = self.shape.clone();
        shape.remove(dim);
        self.picked(&shape, |index| {
            let mut from = index.to_vec();
            from.insert(dim, at);
            from
        })
    }

    pub(super) fn permute(&self, order: &[usize]) -> Self {
        let shape: Vec<usize> = order.iter().map(|dim| self.shape[*dim]).collect();
        self.picked(&shape, |index| {
            let mut from = vec![0; index.len()];
            for (to, dim) in order.iter().enumerate() {
                from[*dim] = index[to];
            }
            from
        })
    }

    pub(super) fn reshape(&self, shape: &[usize]) -> Self {
        Self {
            shape: shape.to_vec(),
            values: self.values.clone(),
        }
    }

    pub(super) fn broadcast_to(&self, shape: &[usize]) -> Self {
        self.picked(shape, |index| {
            let inner = &index[shape.len() - self.shape.len()..];
            let inner = inner.iter().zip(&self.shape);
            inner.map(|(at, size)| if *size == 1 { 0 } else { *at }).collect()
        })
    }
}
