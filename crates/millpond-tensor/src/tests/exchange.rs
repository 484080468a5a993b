//! Conversions to and from types of other libraries.

#[cfg(feature = "ndarray")]
mod arrays {
    use super::super::views::{shape, start, steps, take};
    use super::super::*;
    use ndarray::{Array, ArrayD, Axis, IxDyn, ShapeBuilder, s};

    proptest! {
        #![proptest_config(config(300))]

        #[test]
        #[cfg_attr(miri, ignore)]
        fn ndarray_views_have_the_same_elements(shape in shape(), steps in steps(8)) {
            let (mut tensor, mut model) = start::<i32>(&shape);
            for step in &steps {
                if let Some(next) = take(&tensor, &model, step) {
                    (tensor, model) = next;
                }
            }
            let repeated = tensor.strides().iter().zip(tensor.shape()).any(|(stride, size)| *stride == 0 && *size > 1);
            match tensor.as_ndarray::<i32>() {
                Ok(array) => {
                    prop_assert_eq!(array.shape(), &model.shape[..]);
                    prop_assert!(array.iter().eq(&model.values));
                }
                Err(error) => prop_assert!(repeated && matches!(error, TensorError::Overlapping { .. }), "{error}"),
            }
        }
    }

    #[test]
    fn arrays_are_borrowed_without_a_copy() {
        let ramp = |shape: &[usize], order: &[usize]| {
            let mut at = 0;
            let array = ArrayD::from_shape_simple_fn(IxDyn(shape), || {
                at += 1;
                at
            });
            array.permuted_axes(order)
        };
        for array in [
            ramp(&[2, 3, 4], &[2, 0, 1]),
            ramp(&[1, 5], &[1, 0]),
            ramp(&[], &[]),
            ramp(&[2, 0], &[0, 1]),
        ] {
            let tensor = TensorRef::from_ndarray(array.view()).expect("it fills its memory");
            assert_eq!(tensor.shape(), array.shape());
            assert_eq!(
                tensor.to_vec::<i32>().expect("i32"),
                array.iter().copied().collect::<Vec<_>>()
            );
            let back = tensor.to_ndarray::<i32>().expect("i32");
            assert_eq!(back, array);
            assert!(
                array.is_empty() || back.as_ptr() == array.as_ptr(),
                "nothing was copied"
            );
        }
        let array = ramp(&[4, 6], &[0, 1]);
        let part = array.slice(s![.., ..3]);
        assert!(matches!(
            TensorRef::from_ndarray(part),
            Err(TensorError::NotStandardLayout { .. })
        ));
        let back = array.slice(s![..;-1, ..]);
        assert!(matches!(
            TensorRef::from_ndarray(back),
            Err(TensorError::NotStandardLayout { .. })
        ));
        assert!(TensorRef::from_ndarray(array.view().insert_axis(Axis(0))).is_ok());
        assert!(matches!(
            TensorRef::from_ndarray(ArrayD::<u8>::zeros(IxDyn(&[1; 9])).view()),
            Err(TensorError::Rank { .. })
        ));
    }

    #[test]
    fn an_owned_array_becomes_a_tensor_without_a_copy() {
        let table = Array::from_shape_fn((4, 5), |(row, column)| (10 * row + column) as i32);
        let part = table.clone().slice_move(s![1.., 1..;2]);
        for array in [
            table.clone().into_dyn(),
            table.clone().reversed_axes().into_dyn(),
            part.into_dyn(),
            ArrayD::zeros(IxDyn(&[3, 0])),
            ArrayD::from_elem(IxDyn(&[]), 7),
        ] {
            let (place, expected) = (array.as_ptr(), array.clone());
            let mut tensor = Tensor::from_ndarray(array).expect("forwards");
            assert!(tensor.is_foreign());
            assert_eq!(tensor.as_ndarray::<i32>().expect("i32"), expected);
            tensor.mul_assign(2).expect("alone");
            let seen = tensor.as_ndarray::<i32>().expect("i32");
            assert_eq!(seen, expected * 2);
            assert!(seen.is_empty() || seen.as_ptr() == place, "nothing was copied");
        }
        let back = table.slice_move(s![..;-1, ..]);
        assert!(matches!(
            Tensor::from_ndarray(back),
            Err(TensorError::NotStandardLayout { .. })
        ));
        let repeated = ArrayD::<u8>::zeros(IxDyn(&[1; 9]));
        assert!(matches!(
            Tensor::from_ndarray(repeated),
            Err(TensorError::Rank { .. })
        ));
    }

    #[test]
    fn writes_of_the_other_library_are_visible() {
        let source = fake::unpooled();
        let mut tensor = Tensor::zeros_in(&source, [3, 4], DType::F32).expect("room");
        let part = tensor
            .view_mut()
            .and_then(|all| all.slice(1, 1..3)?.transpose(0, 1))
            .expect("inside");
        let mut array = part.into_ndarray::<f32>().expect("f32");
        array
            .indexed_iter_mut()
            .for_each(|(at, element)| *element = (at[0] * 10 + at[1]) as f32);
        let rows = [[0., 0., 10., 0.], [0., 1., 11., 0.], [0., 2., 12., 0.]];
        assert_eq!(tensor.as_slice::<f32>().expect("f32"), rows.as_flattened());
        let mut array = Array::<u16, _>::zeros((2, 3).f());
        let mut view = TensorMut::from_ndarray(array.view_mut()).expect("it fills its memory");
        view.set(&[1, 2], 7).expect("inside");
        view.select(0, 0).and_then(|mut row| row.fill(3)).expect("inside");
        assert_eq!(array, ndarray::arr2(&[[3, 3, 3], [0, 0, 7]]));
        assert!(tensor.view_mut().expect("alone").into_ndarray::<f64>().is_err());
    }
}

#[cfg(feature = "num-complex")]
#[test]
fn complex_numbers_of_num_complex_are_elements() {
    use super::*;
    use num_complex::Complex;
    let source = fake::unpooled();
    let numbers = [Complex::new(1.0f32, 2.0), Complex::new(0.0, -1.0)];
    let mut tensor = Tensor::from_slice_in(&source, &numbers, [2]).expect("room");
    tensor.mul_assign(Complex::new(0.0f32, 1.0)).expect("complex");
    assert_eq!(
        tensor.as_slice::<Complex<f32>>().expect("complex64"),
        numbers.map(|number| number * Complex::i())
    );
    assert_eq!(tensor.as_slice::<[f32; 2]>().expect("pairs")[0], [-2.0, 1.0]);
}

#[cfg(feature = "serde")]
mod written {
    use super::super::*;
    use proptest::collection::vec;

    fn back(tensor: &Tensor) -> Tensor {
        let text = serde_json::to_string(tensor).expect("text");
        let read: Tensor = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!((read.dtype(), read.shape()), (tensor.dtype(), tensor.shape()));
        read
    }

    fn bits<T: Element>(numbers: Vec<T>) -> Vec<u8> {
        bytemuck::cast_slice(&numbers).to_vec()
    }

    fn same<T: Element>(values: &[T]) {
        let tensor = Tensor::from_slice(values, [values.len()]).expect("room");
        assert_eq!(
            bits(back(&tensor).to_vec::<T>().expect("its type")),
            bits(values.to_vec())
        );
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn elements_of_all_types_survive_a_round_trip() {
        same(&[
            0.1,
            -0.0,
            f64::MAX,
            f64::MIN_POSITIVE,
            f64::INFINITY,
            f64::NEG_INFINITY,
        ]);
        same(&[0.1f32, f32::MAX, 1e-45, f32::NEG_INFINITY]);
        same(&[i64::MIN, i64::MAX]);
        same(&[u64::MAX, 0]);
        same(&[i8::MIN, 7]);
        same(&[[0.1f32, -2.0], [f32::INFINITY, 0.0]]);
        same(&[[0.1, -2.0]]);
        #[cfg(feature = "half")]
        same(&[half::bf16::from_f32(0.1), half::bf16::MAX]);
        let nan = back(&Tensor::from_slice(&[f32::NAN], []).expect("room"));
        assert!(nan.item().expect("one").to_f64().is_some_and(f64::is_nan));
        let bools = Tensor::from_bools(&[true, false], [1, 2]).expect("room");
        assert_eq!(
            serde_json::to_string(&bools).expect("text"),
            r#"{"dtype":"bool","shape":[1,2],"data":[true,false]}"#
        );
        assert_eq!(back(&bools).to_bools().expect("bool"), [true, false]);
        let table = Tensor::arange(0, 6, 1)
            .and_then(|all| all.reshape([2, 3])?.transpose(0, 1))
            .expect("room");
        assert_eq!(back(&table).to_vec::<i32>().expect("i32"), [0, 3, 1, 4, 2, 5]);
        assert!(back(&Tensor::zeros([3, 0], DType::F64).expect("nothing")).is_empty());
    }

    proptest! {
        #![proptest_config(config(200))]

        #[test]
        #[cfg_attr(miri, ignore)]
        fn every_f32_survives_a_round_trip_bit_for_bit(numbers in vec(any::<f32>(), 0..20)) {
            same(&numbers);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn wrong_data_is_refused_and_memory_grows_with_the_elements() {
        let refused = |text: &str| serde_json::from_str::<Tensor>(text).expect_err(text).to_string();
        let most = usize::MAX;
        for (text, why) in [
            (
                r#"{"dtype":"f32","shape":[1000000,1000000],"data":[1.0]}"#.to_owned(),
                "has 1000000000000 elements, not 1",
            ),
            (
                format!(r#"{{"dtype":"f32","shape":[{most},{most}],"data":[]}}"#),
                "more elements than a `usize` can count",
            ),
            (
                r#"{"dtype":"f32","shape":[1,1,1,1,1,1,1,1,1],"data":[1]}"#.to_owned(),
                "at most 8 dimensions",
            ),
            (
                r#"{"dtype":"f32","shape":[1],"data":[1,2]}"#.to_owned(),
                "has 1 elements, not 2",
            ),
            (
                r#"{"dtype":"u8","shape":[1],"data":[256]}"#.to_owned(),
                "256 does not fit into u8",
            ),
            (
                r#"{"dtype":"u8","shape":[1],"data":[0.5]}"#.to_owned(),
                "0.5 does not fit into u8",
            ),
            (
                r#"{"dtype":"f32","shape":[1],"data":["one"]}"#.to_owned(),
                "invalid value",
            ),
            (
                r#"{"dtype":"f32","shape":[1],"data":[[1,2]]}"#.to_owned(),
                "1+2i does not fit into f32",
            ),
            (
                r#"{"dtype":"complex64","shape":[1],"data":[[1,[2,3]]]}"#.to_owned(),
                "invalid type",
            ),
            (
                r#"{"dtype":"complex64","shape":[1],"data":[[1]]}"#.to_owned(),
                "a pair of numbers",
            ),
            (
                r#"{"dtype":"complex64","shape":[1],"data":[[1,2,3]]}"#.to_owned(),
                "a pair of numbers",
            ),
            (
                r#"{"dtype":"f12","shape":[1],"data":[1]}"#.to_owned(),
                "no element type",
            ),
            (
                r#"{"shape":[1],"data":[1],"dtype":"f32"}"#.to_owned(),
                "come before its data",
            ),
            (
                r#"{"dtype":"f32","shape":[1]}"#.to_owned(),
                "missing field `data`",
            ),
            (
                r#"{"dtype":"f32","shape":[-1],"data":[]}"#.to_owned(),
                "invalid value",
            ),
            (
                r#"{"dtype":"f32","shape":[1],"data":[1],"more":1}"#.to_owned(),
                "unknown field",
            ),
        ] {
            let error = refused(&text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    /// A binary format: fields one after another, and bytes unchanged.
    mod plain {
        use serde::de::value::{BytesDeserializer, Error, StrDeserializer, U64Deserializer};
        use serde::de::{
            DeserializeSeed, Deserializer, IntoDeserializer, SeqAccess, Visitor, value::SeqDeserializer,
        };

        pub(super) enum Field {
            Name(&'static str),
            Sizes(Vec<u64>),
            Bytes(Vec<u8>),
        }

        pub(super) struct Fields(pub(super) std::vec::IntoIter<Field>);

        pub(super) struct Value(Field);

        macro_rules! binary {
            ($type:ty, $self:ident, $visitor:ident => $body:expr) => {
                impl<'de> Deserializer<'de> for $type {
                    type Error = Error;
                    fn is_human_readable(&self) -> bool {
                        false
                    }
                    fn deserialize_any<V: Visitor<'de>>($self, $visitor: V) -> Result<V::Value, Error> {
                        $body
                    }
                    serde::forward_to_deserialize_any! {
                        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
                        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
                    }
                }
            };
        }

        binary!(Fields, self, visitor => visitor.visit_seq(self));
        binary!(Value, self, visitor => match self.0 {
            Field::Name(name) => {
                let name: StrDeserializer<'_, Error> = name.into_deserializer();
                name.deserialize_any(visitor)
            }
            Field::Sizes(sizes) => {
                let sizes = sizes.into_iter().map(|size| -> U64Deserializer<Error> { size.into_deserializer() });
                visitor.visit_seq(SeqDeserializer::new(sizes))
            }
            Field::Bytes(bytes) => BytesDeserializer::<Error>::new(&bytes).deserialize_any(visitor),
        });

        impl<'de> SeqAccess<'de> for Fields {
            type Error = Error;
            fn next_element_seed<S: DeserializeSeed<'de>>(
                &mut self,
                seed: S,
            ) -> Result<Option<S::Value>, Error> {
                self.0
                    .next()
                    .map(|field| seed.deserialize(Value(field)))
                    .transpose()
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn elements_are_read_from_bytes_of_a_binary_format() {
        use plain::{Field, Fields};
        use serde::Deserialize;
        let read = |dtype, shape: &[u64], bytes: &[u8]| {
            let fields = vec![
                Field::Name(dtype),
                Field::Sizes(shape.to_vec()),
                Field::Bytes(bytes.to_vec()),
            ];
            Tensor::deserialize(Fields(fields.into_iter()))
        };
        let ints = read("i16", &[1, 2], &[1, 0, 255, 255]).expect("two of them");
        assert_eq!(ints.to_vec::<i16>().expect("i16"), [1, -1]);
        let halves = read("f16", &[1], &[0, 0x3C]).expect("one");
        assert_eq!(halves.item().expect("one"), Scalar::Float(1.0));
        assert!(read("i16", &[2], &[1, 0, 255]).is_err());
        assert!(read("f64", &[1 << 60], &[0; 8]).is_err());
        assert!(read("f64", &[u64::MAX, 2], &[0; 8]).is_err());
        assert_eq!(
            read("bool", &[2], &[1, 0])
                .map(|bools| bools.to_bools().expect("bool"))
                .expect("two"),
            [true, false]
        );
        assert!(read("bool", &[1], &[2]).is_err());
    }
}

#[test]
fn slices_are_tensors_of_one_dimension() {
    use super::*;
    let mut numbers = [1.0f32, 2.0, 3.0];
    TensorMut::from(&mut numbers[1..]).add_assign(1.0).expect("f32");
    let seen = TensorRef::from(&numbers[..]);
    assert_eq!(
        (seen.shape(), seen.as_slice::<f32>().expect("f32")),
        (&[3][..], &[1.0, 3.0, 4.0][..])
    );
    assert!(TensorRef::from(&numbers[..0]).is_empty());
}
