//! Processes images in a pipeline whose memory is allocated before the first image: conversion to grey, blur, edge
//! detection, and scaling to the full range. A processor is made for the largest image and also accepts smaller ones.
//! The neighbours of a pixel are views of the image, shifted by one. At the end the program proves that no image
//! allocated memory, and that each result equals that of a plain loop.
//!
//! ```text
//! cargo run -p millpond --example image_pipeline
//! ```

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    match linux::run() {
        Ok(true) => std::process::ExitCode::SUCCESS,
        Ok(false) => std::process::ExitCode::FAILURE,
        Err(error) => {
            eprintln!("image_pipeline: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use millpond::engine::display_size;
    use millpond::{DType, Pool, Pools, TensorError, TensorMut, TensorRef, Workspace, workspace::Scratch};
    use std::error::Error;
    use std::thread;

    /// The largest image: rows and columns.
    const LARGEST: [usize; 2] = [270, 480];
    const CHANNELS: usize = 3;
    /// The weight of each channel in grey (ITU-R BT.601).
    const GREY: [f32; CHANNELS] = [0.299, 0.587, 0.114];
    const BLUR: [f32; 3] = [0.25, 0.5, 0.25];
    const SLOPE: [f32; 3] = [-1.0, 0.0, 1.0];

    /// Computes `out = weighted sum of three neighbours` along a dimension. `out` is shorter by two in this dimension.
    fn neighbours(
        image: TensorRef<'_>,
        dim: usize,
        weights: [f32; 3],
        out: &mut TensorMut<'_>,
    ) -> Result<(), TensorError> {
        let inner = out.size(dim)?;
        out.fill(0.0f32)?;
        for (at, weight) in weights.into_iter().enumerate() {
            out.axpy(weight, image.slice(dim, at..at + inner)?)?;
        }
        Ok(())
    }

    /// Returns the minimum and the maximum.
    fn range(values: &[f32]) -> (f32, f32) {
        values
            .iter()
            .fold((f32::INFINITY, f32::NEG_INFINITY), |(least, most), value| {
                (least.min(*value), most.max(*value))
            })
    }

    /// The memory that the pipeline needs, which is allocated when it is made.
    struct Processor {
        workspace: Workspace,
        /// The pixels of the largest image.
        most: usize,
    }

    impl Processor {
        fn new(pool: &Pool, largest: [usize; 2]) -> Result<Self, Box<dyn Error>> {
            let most = largest[0] * largest[1];
            let workspace = Workspace::builder(pool)
                .tensor("edges", [most], DType::U8)
                // The scratch memory holds the colours and four images of one channel, each with its padding for
                // alignment.
                .scratch_bytes(size_of::<f32>() * most * (CHANNELS + 4) + 5 * 64)
                .build()?;
            Ok(Self { workspace, most })
        }

        /// Returns the edges of an image of rows, columns and channels, two pixels narrower at each side. The smallest
        /// change is 0, and the largest 255. The result is stored in the processor until the next image.
        fn process(&mut self, image: TensorRef<'_>) -> Result<TensorRef<'_>, Box<dyn Error>> {
            let &[rows, columns, CHANNELS] = image.shape() else {
                return Err(format!(
                    "{:?} is not the shape of an image with {CHANNELS} channels",
                    image.shape()
                )
                .into());
            };
            if rows.min(columns) <= 4 || rows * columns > self.most {
                return Err(format!(
                    "{rows} x {columns} pixels: each number must be above 4 and at most {}",
                    self.most
                )
                .into());
            }
            let inner = [rows - 4, columns - 4];
            let len = inner[0] * inner[1];
            self.workspace.scope_with(|named, scratch| {
                let edges = named.tensor_mut("edges")?.view_mut()?;
                let mut edges = edges.slice(0, ..len)?.reshape(inner)?;
                edges_of(image, scratch, &mut edges)?;
                Ok::<_, Box<dyn Error>>(())
            })?;
            Ok(self
                .workspace
                .tensor("edges")?
                .view()?
                .slice(0, ..len)?
                .reshape(inner)?)
        }
    }

    fn edges_of(
        image: TensorRef<'_>,
        scratch: &Scratch<'_>,
        edges: &mut TensorMut<'_>,
    ) -> Result<(), TensorError> {
        let [rows, columns] = [image.size(0)?, image.size(1)?];
        let mut colours = scratch.tensor::<f32>(image.shape())?;
        image.cast_into(&mut colours)?;
        let mut grey = scratch.tensor::<f32>([rows, columns])?;
        grey.fill(0.0f32)?;
        for (channel, weight) in GREY.into_iter().enumerate() {
            grey.axpy(weight, colours.as_ref().select(2, channel)?)?;
        }

        let mut above = scratch.tensor::<f32>([rows - 2, columns])?;
        neighbours(grey.as_ref(), 0, BLUR, &mut above)?;
        // The buffer of the grey image is reused, because the first image of one channel is as large as any later one.
        let reused = grey.into_mut_slice::<f32>()?;
        let size = [rows - 2, columns - 2];
        let mut blurred = TensorMut::from_slice(&mut reused[..size[0] * size[1]], size)?;
        neighbours(above.as_ref(), 1, BLUR, &mut blurred)?;

        let inner = [rows - 4, columns - 4];
        let (mut down, mut across) = (scratch.tensor::<f32>(inner)?, scratch.tensor::<f32>(inner)?);
        let blurred = blurred.as_ref();
        neighbours(blurred.slice(1, 1..columns - 3)?, 0, SLOPE, &mut down)?;
        neighbours(blurred.slice(0, 1..rows - 3)?, 1, SLOPE, &mut across)?;
        down.par_zip_in_place(across.as_ref(), f32::hypot)?;
        let (least, most) = range(down.as_slice()?);
        down.sub_assign(least)?;
        if most > least {
            down.scal(255.0 / (most - least))?;
        }
        down.as_ref().cast_into(edges)
    }

    /// Computes the same by plain loops over a vector, one pixel at a time.
    fn by_loops(pixels: &[u8], rows: usize, columns: usize) -> Vec<u8> {
        let grey = |row: usize, column: usize| {
            let pixel = &pixels[CHANNELS * (row * columns + column)..][..CHANNELS];
            pixel
                .iter()
                .zip(GREY)
                .fold(0.0, |sum, (value, weight)| sum + weight * f32::from(*value))
        };
        let above =
            |row: usize, column: usize| (0..3).fold(0.0, |sum, at| sum + BLUR[at] * grey(row + at, column));
        let blurred =
            |row: usize, column: usize| (0..3).fold(0.0, |sum, at| sum + BLUR[at] * above(row, column + at));
        let mut out = Vec::new();
        for row in 0..rows - 4 {
            for column in 0..columns - 4 {
                let down = (0..3).fold(0.0, |sum, at| sum + SLOPE[at] * blurred(row + at, column + 1));
                let across = (0..3).fold(0.0, |sum, at| sum + SLOPE[at] * blurred(row + 1, column + at));
                out.push(f32::hypot(down, across));
            }
        }
        let (least, most) = range(&out);
        let factor = if most > least { 255.0 / (most - least) } else { 1.0 };
        out.iter().map(|value| ((value - least) * factor) as u8).collect()
    }

    /// Draws a disc in front of a colour gradient, at another place in each image.
    fn draw(number: usize, rows: usize, columns: usize) -> Vec<u8> {
        let (y, x) = ((37 * number) % rows, (61 * number) % columns);
        let places = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        places
            .flat_map(|(row, column)| {
                let apart = row.abs_diff(y).pow(2) + column.abs_diff(x).pow(2);
                let disc = if apart < 900 { 120 } else { 0 };
                [row, column, number].map(|ramp| (disc + ramp % 100) as u8)
            })
            .collect()
    }

    fn check(what: &str, holds: bool) -> bool {
        println!("{} {what}", if holds { "yes " } else { "NO  " });
        holds
    }

    /// An image, and the result of a plain loop for it.
    struct Image {
        pixels: Vec<u8>,
        shape: [usize; 3],
        edges: Vec<u8>,
    }

    /// Returns true if a processor's result is correct for every image.
    fn process_all(processor: &mut Processor, images: &[Image]) -> Result<bool, String> {
        let mut same = true;
        for image in images {
            let view =
                TensorRef::from_slice(&image.pixels, image.shape).map_err(|error| error.to_string())?;
            let edges = processor.process(view).map_err(|error| error.to_string())?;
            same &= edges.as_slice::<u8>().is_ok_and(|edges| edges == image.edges);
        }
        Ok(same)
    }

    pub(crate) fn run() -> Result<bool, Box<dyn Error>> {
        let [most_rows, most_columns] = LARGEST;
        let images: Vec<Image> = (0..8)
            .map(|number| {
                let (rows, columns) = (most_rows - 29 * number, most_columns - 41 * (7 * number % 8));
                let pixels = draw(number, rows, columns);
                let edges = by_loops(&pixels, rows, columns);
                let shape = [rows, columns, CHANNELS];
                Image { pixels, shape, edges }
            })
            .collect();
        let busy = images
            .iter()
            .all(|image| image.edges.iter().any(|edge| *edge > 127));

        // The scope makes this set count every tensor that is made on the way, wherever that happens.
        let set = Pools::new();
        let _scope = set.enter();
        let pool = set.host()?;
        let mut processors = Vec::new();
        for _ in 0..3 {
            processors.push(Processor::new(&pool, LARGEST)?);
        }
        let made = pool.stats();
        println!(
            "{} processors for {most_rows} x {most_columns} pixels: {} blocks, {}",
            processors.len(),
            made.allocations,
            display_size(made.requested.current)
        );

        // One processor processes all images on this thread. Then every processor does so on its own thread.
        let first = process_all(&mut processors[0], &images)?;
        let together = thread::scope(|threads| {
            let work = |processor| {
                threads.spawn(|| {
                    let _scope = set.join();
                    process_all(processor, &images)
                })
            };
            let threads: Vec<_> = processors.iter_mut().map(work).collect();
            threads
                .into_iter()
                .all(|thread| matches!(thread.join(), Ok(Ok(true))))
        });

        let shape = [most_rows + 1, most_columns, CHANNELS];
        let zeros = vec![0u8; shape.iter().product()];
        let larger = TensorRef::from_slice(&zeros, shape)?;
        let refused = [
            processors[0].process(larger).err(),
            processors[0].process(larger.slice(0, ..4)?).err(),
            processors[0].process(larger.slice(2, ..1)?).err(),
        ];
        for error in refused.iter().flatten() {
            println!("refused: {error}");
        }
        let after = pool.stats();
        let stats = processors.iter().map(|processor| processor.workspace.stats());
        let stats: Vec<_> = stats.collect();
        let scopes: u64 = stats.iter().map(|stats| stats.scopes).sum();
        println!(
            "{scopes} images of {} sizes: {} allocations, with at most {} of {} in use for temporaries",
            images.len(),
            after.allocations - made.allocations,
            display_size(stats.iter().map(|stats| stats.scratch_peak).max().unwrap_or(0)),
            display_size(stats[0].scratch_bytes)
        );
        drop(processors);
        let left = pool.stats();
        let proofs = [
            check(
                "each processor allocated its memory when it was created",
                made.allocations == 6,
            ),
            check(
                "no image allocated memory, not even the first",
                after.allocations == made.allocations && stats.iter().all(|stats| stats.growths == 1),
            ),
            check(
                "the peak did not rise",
                after.requested.peak == made.requested.current,
            ),
            check("every image matches that of a plain loop", first && busy),
            check(
                "every image also matches on three threads at once",
                together && scopes == 32,
            ),
            check(
                "images that do not fit are refused",
                refused.iter().all(Option::is_some),
            ),
            check("all memory was freed", left.requested.current == 0),
        ];
        Ok(proofs.into_iter().all(|holds| holds))
    }
}
