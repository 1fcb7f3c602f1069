//! What the programs below `bench/` print, gathered over runs: `value|NAME|UNIT|NUMBER`,
//! `fail|NAME|WHY`, and `end` from those that say that they came to it.

use super::Row;

/// The values of a row on one kernel, in the order of the runs.
struct Sample {
    name: String,
    system: &'static str,
    unit: String,
    values: Vec<f64>,
}

/// The values of all rows.
#[derive(Default)]
pub struct Samples(Vec<Sample>);

/// What a run said besides values.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Said {
    pub failures: Vec<String>,
    pub ended: bool,
}

impl Samples {
    /// Reads one run's lines.
    pub fn gather(&mut self, system: &'static str, output: &str) -> Said {
        let mut said = Said::default();
        for line in output.lines() {
            let parts: Vec<&str> = line.trim_end().split('|').collect();
            match parts[..] {
                ["value", name, unit, value] => {
                    let value = value.parse().unwrap_or(f64::NAN);
                    match self.0.iter_mut().find(|row| row.name == name && row.system == system) {
                        Some(row) => row.values.push(value),
                        None => self.0.push(Sample {
                            name: name.to_owned(),
                            system,
                            unit: unit.to_owned(),
                            values: vec![value],
                        }),
                    }
                }
                ["fail", name, why] => said.failures.push(format!("{name} ({why})")),
                ["end"] => said.ended = true,
                _ => {}
            }
        }
        said
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn rows(&self) -> Vec<Row> {
        self.0.iter().map(|row| Row::of(&row.name, row.system, &row.unit, &row.values)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_several_runs_come_together() {
        let mut samples = Samples::default();
        for run in ["3.0", "1.0", "2.0"] {
            samples.gather("uvm", &format!("noise\nvalue|a|ms|{run}\n"));
        }
        let said = samples.gather("uvm", "fail|b|why: not\nend\n");
        assert_eq!(said, Said { failures: vec!["b (why: not)".to_owned()], ended: true });
        assert!(!samples.gather("uvm", "noise\n").ended);
        let row = &samples.rows()[0];
        assert_eq!((row.value, row.min, row.max, row.runs), (2.0, 1.0, 3.0, 3));
    }
}
