//! Checks the colours of bands.

use super::STYLE;

/// The smallest distance of two bands in the CIELAB space. Below about 10, adjacent areas look alike.
const LEAST: f64 = 15.0;

/// Matrices that map linear light to the light that people without one kind of cones see (Machado and others, 2009).
const SIGHTS: [(&str, [[f64; 3]; 3]); 4] = [
    ("all cones", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
    (
        "no green",
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ],
    ),
    (
        "no red",
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ],
    ),
    (
        "no blue",
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ],
    ),
];

/// Returns the colours of a custom property in light and in dark.
fn colours(name: &str) -> Option<[String; 2]> {
    let value = STYLE.split(&format!("--{name}: light-dark(")).nth(1)?;
    let (light, dark) = value.split(')').next()?.split_once(", ")?;
    Some([light.to_owned(), dark.to_owned()])
}

/// Returns a colour as it is seen with this vision, in CIELAB.
fn seen(colour: &str, sight: &[[f64; 3]; 3]) -> [f64; 3] {
    let part = |at: usize| f64::from(u8::from_str_radix(&colour[at..at + 2], 16).expect("a colour")) / 255.0;
    let linear = [1, 3, 5].map(|at| match part(at) {
        low if low <= 0.04045 => low / 12.92,
        high => ((high + 0.055) / 1.055).powf(2.4),
    });
    let times = |row: &[f64; 3], of: &[f64; 3]| row.iter().zip(of).map(|(a, b)| a * b).sum::<f64>();
    let light = [0, 1, 2].map(|row| times(&sight[row], &linear).clamp(0.0, 1.0));
    let white = [0.9505, 1.0, 1.089];
    let xyz = [
        [0.4124, 0.3576, 0.1805],
        [0.2126, 0.7152, 0.0722],
        [0.0193, 0.1192, 0.9505],
    ];
    let [x, y, z] = [0, 1, 2].map(|row| match times(&xyz[row], &light) / white[row] {
        high if high > 0.008856 => high.cbrt(),
        low => 7.787 * low + 16.0 / 116.0,
    });
    [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
}

#[test]
fn bands_are_distinct_with_colour_blindness_in_light_and_dark() {
    let hues: Vec<[String; 2]> = (0..).map_while(|hue| colours(&format!("tag-{hue}"))).collect();
    assert_eq!(hues.len(), 5);
    for (theme, of) in ["light", "dark"].iter().enumerate() {
        for (name, sight) in &SIGHTS {
            let labs: Vec<[f64; 3]> = hues.iter().map(|hue| seen(&hue[theme], sight)).collect();
            for (i, a) in labs.iter().enumerate() {
                for (j, b) in labs.iter().enumerate().skip(i + 1) {
                    let apart = a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
                    assert!(apart >= LEAST, "{of}, {name}: {i} and {j} are {apart:.1} apart");
                }
            }
        }
    }
}

#[test]
fn every_style_of_a_band_has_a_css_class() {
    for band in 0..10 {
        let class = format!(".tag-{band} {{");
        assert!(STYLE.contains(&class), "{class}");
    }
    for class in [
        ".others {",
        ".swatch.small {",
        ".swatch.waste {",
        ".waiting {",
        ".swatch.free {",
    ] {
        assert!(STYLE.contains(class), "{class}");
    }
}
