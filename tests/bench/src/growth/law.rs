//! Fits a law to points, and says where they leave it.

use super::curve::{Curve, Law};

/// A point may be this far from its law, relative to it. Shared machines are no quieter.
const TOLERANCE: f64 = 0.25;

/// The law's line through the points: `a + b f(n)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    law: Law,
    a: f64,
    b: f64,
}

impl Law {
    /// The part that grows.
    fn term(self, n: f64) -> f64 {
        match self {
            Law::Constant => 0.0,
            Law::Linear => n,
            Law::NLogN => n * n.max(2.0).log2(),
        }
    }
}

impl Fit {
    /// The line with the least squares of relative errors, with `a` and `b` not below 0.
    pub fn of(curve: &Curve) -> Fit {
        let law = curve.law;
        let weighted = |f: &dyn Fn(f64, f64) -> f64| -> f64 {
            let points = curve.points.iter().filter(|(_, y)| *y > 0.0);
            points.map(|(x, y)| f(law.term(*x as f64), *y) / (y * y)).sum()
        };
        let (ones, terms, squares) = (weighted(&|_, _| 1.0), weighted(&|t, _| t), weighted(&|t, _| t * t));
        let (values, products) = (weighted(&|_, y| y), weighted(&|t, y| t * y));
        let determinant = ones * squares - terms * terms;
        let (a, b) = match determinant > 1e-12 * ones * squares {
            true => (
                (values * squares - terms * products) / determinant,
                (ones * products - terms * values) / determinant,
            ),
            false => (values / ones, 0.0),
        };
        let (a, b) = match (a < 0.0, b < 0.0) {
            (_, true) => (values / ones, 0.0),
            (true, _) => (0.0, products / squares),
            _ => (a, b),
        };
        Fit { law, a, b }
    }

    /// The law's cost at `x`.
    pub fn at(&self, x: u64) -> f64 {
        self.a + self.b * self.law.term(x as f64)
    }

    /// The law with its numbers.
    pub fn formula(&self) -> String {
        let number = |value: f64| match value {
            value if value >= 100.0 => format!("{value:.0}"),
            value if value >= 0.1 => format!("{value:.3}")
                .trim_end_matches('0')
                .trim_end_matches('.')
                .to_string(),
            value => format!("{value:.2e}"),
        };
        match self.law {
            Law::Constant => number(self.a),
            Law::Linear => format!("{} + {} n", number(self.a), number(self.b)),
            Law::NLogN => format!("{} + {} n log₂ n", number(self.a), number(self.b)),
        }
    }
}

/// Where the points leave their law by more than a quarter, in words; `None`: nowhere.
pub fn broken(curve: &Curve) -> Option<String> {
    let fit = Fit::of(curve);
    let off = curve
        .points
        .iter()
        .filter(|(x, y)| (y / fit.at(*x) - 1.0).abs() > TOLERANCE);
    let worst = off.max_by(|one, other| {
        let of = |(x, y): &(u64, f64)| (y / fit.at(*x)).ln().abs();
        of(one).total_cmp(&of(other))
    })?;
    Some(format!("{:.2} of the law at {}", worst.1 / fit.at(worst.0), worst.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(law: Law, of: impl Fn(f64) -> f64) -> Curve {
        let mut curve = Curve::new("c", "t", "n", "us", law);
        for x in [1u64, 4, 16, 64, 256, 1024] {
            curve.put(x, of(x as f64));
        }
        curve
    }

    #[test]
    fn numbers_of_a_law_are_found_again() {
        let linear = curve(Law::Linear, |n| 3.0 + 0.5 * n);
        let fit = Fit::of(&linear);
        assert!((fit.a - 3.0).abs() < 1e-2 && (fit.b - 0.5).abs() < 1e-3, "{fit:?}");
        assert_eq!(broken(&linear), None);
        assert_eq!(fit.formula(), "3 + 0.5 n");
        let fit = Fit::of(&curve(Law::NLogN, |n| 1.0 + 0.25 * n * n.max(2.0).log2()));
        assert!((fit.a - 1.0).abs() < 1e-2 && (fit.b - 0.25).abs() < 1e-3, "{fit:?}");
    }

    #[test]
    fn growth_beyond_the_law_is_named() {
        let grows = broken(&curve(Law::Constant, |n| 10.0 + n)).expect("it is not constant");
        assert!(grows.contains("at 1"), "{grows}");
        let jumps = curve(Law::Linear, |n| if n > 1000.0 { 3.0 * n } else { 1.0 + n });
        assert!(broken(&jumps).is_some());
        assert_eq!(broken(&curve(Law::Constant, |n| 10.0 + (n % 3.0) / 10.0)), None);
    }
}
