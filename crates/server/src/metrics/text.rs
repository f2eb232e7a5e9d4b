//! Metrics as text: the form that Prometheus has always read (0.0.4), and OpenMetrics 1.0.

use std::fmt::{self, Write};

use rollcall_core::LatencyCounts;
use rollcall_core::latency::BOUNDS;
use rollcall_node::{Family, Sample, Value};

/// A form of the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Text format 0.0.4.
    Plain,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Form {
    /// The content type.
    pub fn content_type(self) -> &'static str {
        match self {
            Form::Plain => "text/plain;version=0.0.4;charset=utf-8",
            Form::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// The form that the header `Accept` of a scrape asks for: OpenMetrics when it is named with at least the weight of
    /// the other.
    pub fn wanted(accept: &str) -> Self {
        if !accept.contains(OPEN_METRICS) {
            return Form::Plain; // Every request comes by here.
        }
        let (mut open, mut plain) = (0.0, 0.0);
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default();
            let (mut weight, mut is_ours) = (1.0, true);
            for (key, value) in parts.filter_map(|part| part.split_once('=')) {
                match key.trim() {
                    "q" => weight = value.trim().parse().unwrap_or(0.0),
                    "version" => is_ours = name != OPEN_METRICS || value.trim() == "1.0.0",
                    _ => {}
                }
            }
            match name {
                OPEN_METRICS if is_ours => open = f64::max(open, weight),
                "text/plain" | "text/*" | "*/*" => plain = f64::max(plain, weight),
                _ => {}
            }
        }
        if open > 0.0 && open >= plain {
            Form::OpenMetrics
        } else {
            Form::Plain
        }
    }
}

const OPEN_METRICS: &str = "application/openmetrics-text";

/// The text of `families`; those without a value are left out.
pub fn write(families: &[Family], form: Form) -> String {
    let mut text = Text {
        out: String::with_capacity(64 * 1024),
        form,
    };
    // Writing to a string does not fail.
    let _ = families
        .iter()
        .filter(|family| !family.samples.is_empty())
        .try_for_each(|family| text.family(family));
    if form == Form::OpenMetrics {
        text.out.push_str("# EOF\n");
    }
    text.out
}

struct Text {
    out: String,
    form: Form,
}

impl Text {
    fn family(&mut self, family: &Family) -> fmt::Result {
        let kind = match family.samples.first().map(|sample| sample.value) {
            Some(Value::Counter(_)) => "counter",
            Some(Value::Histogram(_)) => "histogram",
            Some(Value::Summary { .. }) => "summary",
            Some(Value::Gauge(_)) | None => "gauge",
        };
        // OpenMetrics names a counter without its ending, the older form with it.
        let ending = if kind == "counter" && self.form == Form::Plain {
            "_total"
        } else {
            ""
        };
        let name = family.name;
        write!(self.out, "# HELP {name}{ending} ")?;
        self.escaped(family.help, self.form == Form::OpenMetrics)?;
        writeln!(self.out, "\n# TYPE {name}{ending} {kind}")?;
        family
            .samples
            .iter()
            .try_for_each(|sample| self.sample(name, sample))
    }

    fn sample(&mut self, name: &str, sample: &Sample) -> fmt::Result {
        match sample.value {
            Value::Counter(value) => self.line(name, "_total", sample, None, value),
            Value::Gauge(value) => self.line(name, "", sample, None, Number(value)),
            Value::Histogram(counts) => self.histogram(name, sample, &counts),
            Value::Summary { count, sum } => {
                self.line(name, "_count", sample, None, count)?;
                self.line(name, "_sum", sample, None, Number(sum.as_secs()))
            }
        }
    }

    fn histogram(&mut self, name: &str, sample: &Sample, counts: &LatencyCounts) -> fmt::Result {
        let bounds = BOUNDS.iter().map(|bound| bound.as_secs());
        let mut so_far = 0;
        for (bound, count) in bounds.chain([f64::INFINITY]).zip(counts.buckets) {
            so_far += count;
            self.line(name, "_bucket", sample, Some(Number(bound)), so_far)?;
        }
        self.line(name, "_sum", sample, None, Number(counts.sum.as_secs()))?;
        self.line(name, "_count", sample, None, so_far)
    }

    fn line(
        &mut self,
        name: &str,
        ending: &str,
        sample: &Sample,
        bound: Option<Number>,
        value: impl fmt::Display,
    ) -> fmt::Result {
        write!(self.out, "{name}{ending}")?;
        let mut opening = '{';
        for (label, text) in &sample.labels {
            write!(self.out, "{opening}{label}=\"")?;
            self.escaped(text, true)?;
            self.out.push('"');
            opening = ',';
        }
        if let Some(bound) = bound {
            write!(self.out, "{opening}le=\"{bound}\"")?;
            opening = ',';
        }
        if opening == ',' {
            self.out.push('}');
        }
        writeln!(self.out, " {value}")
    }

    fn escaped(&mut self, text: &str, quotes_too: bool) -> fmt::Result {
        for c in text.chars() {
            match c {
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '"' if quotes_too => self.out.push_str("\\\""),
                c => self.out.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// A number as both forms want it: with a decimal point.
struct Number(f64);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == f64::INFINITY {
            f.write_str("+Inf")
        } else {
            write!(f, "{:?}", self.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use rollcall_core::{Latencies, Micros};

    use super::*;

    fn families() -> Vec<Family> {
        let latencies = Latencies::default();
        latencies.record(Micros(700));
        latencies.record(Micros(20_000_000));
        vec![
            Family::single("a_things", "Things \"so\\far\"", Value::Counter(7)),
            Family {
                name: "b",
                help: "B",
                samples: vec![Sample {
                    labels: vec![("x", "1".into()), ("y", "q\"\\\n说".into())],
                    value: Value::Gauge(-1.0),
                }],
            },
            Family {
                name: "nothing",
                help: "None",
                samples: Vec::new(),
            },
            Family {
                name: "c_seconds",
                help: "C",
                samples: vec![Sample {
                    labels: vec![("way", "grpc".into())],
                    value: Value::Histogram(latencies.counts()),
                }],
            },
            Family::single(
                "d_seconds",
                "D",
                Value::Summary {
                    count: 2,
                    sum: Micros(1_500),
                },
            ),
        ]
    }

    #[test]
    fn the_older_form_names_counters_with_their_ending() {
        let text = write(&families(), Form::Plain);
        let start = "# HELP a_things_total Things \"so\\\\far\"\n# TYPE a_things_total counter\na_things_total 7\n\
                     # HELP b B\n# TYPE b gauge\nb{x=\"1\",y=\"q\\\"\\\\\\n说\"} -1.0\n# HELP c_seconds C\n";
        assert!(text.starts_with(start), "{text}");
        assert!(!text.contains("EOF") && !text.contains("nothing"));
    }

    #[test]
    fn open_metrics_names_families_and_says_where_it_ends() {
        let text = write(&families(), Form::OpenMetrics);
        let start = "# HELP a_things Things \\\"so\\\\far\\\"\n# TYPE a_things counter\na_things_total 7\n# HELP b B\n";
        assert!(text.starts_with(start), "{text}");
        let end = "# TYPE d_seconds summary\nd_seconds_count 2\nd_seconds_sum 0.0015\n# EOF\n";
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn a_histogram_counts_upwards_to_its_total() {
        let text = write(&families(), Form::Plain);
        let lines: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with("c_seconds"))
            .collect();
        assert_eq!(lines.len(), BOUNDS.len() + 3);
        assert_eq!(lines[0], "c_seconds_bucket{way=\"grpc\",le=\"0.0005\"} 0");
        assert_eq!(lines[1], "c_seconds_bucket{way=\"grpc\",le=\"0.001\"} 1");
        assert_eq!(lines[13], "c_seconds_bucket{way=\"grpc\",le=\"10.0\"} 1");
        assert_eq!(lines[14], "c_seconds_bucket{way=\"grpc\",le=\"+Inf\"} 2");
        assert_eq!(lines[15], "c_seconds_sum{way=\"grpc\"} 20.0007");
        assert_eq!(lines[16], "c_seconds_count{way=\"grpc\"} 2");
    }

    #[test]
    fn a_scraper_gets_the_form_it_asks_for() {
        for (accept, form) in [
            ("", Form::Plain),
            ("*/*", Form::Plain),
            ("text/plain", Form::Plain),
            ("application/openmetrics-text", Form::OpenMetrics),
            (
                "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,\
                 text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
                Form::OpenMetrics,
            ),
            (
                "application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                Form::Plain,
            ),
            (
                "text/plain;version=0.0.4;q=0.6,application/openmetrics-text;version=1.0.0;q=0.5",
                Form::Plain,
            ),
            ("application/openmetrics-text;q=0", Form::Plain),
        ] {
            assert_eq!(Form::wanted(accept), form, "{accept}");
        }
    }
}
