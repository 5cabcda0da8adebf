//! Dates for templates. Formats a time that the caller read; there is no clock here.

/// A local time: seconds since 1970 UTC and how far local time is ahead of UTC, both in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LocalTime {
    /// Seconds since 1970-01-01 00:00 UTC.
    pub unix_seconds: i64,
    /// Local time minus UTC, in seconds.
    pub utc_offset_seconds: i32,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

struct Civil {
    year: i64,
    month: usize,
    day: i64,
    day_of_year: i64,
    weekday: usize,
    second_of_day: i64,
}

impl LocalTime {
    /// Formats as C's `strftime` in the C locale. An unknown directive is left as it is written.
    pub fn format(self, format: &str) -> String {
        let civil = self.civil();
        let mut out = String::with_capacity(format.len() + 16);
        let mut rest = format.chars();
        while let Some(character) = rest.next() {
            if character != '%' {
                out.push(character);
                continue;
            }
            let (padded, directive) = match rest.next() {
                Some('-') => (false, rest.next()),
                other => (true, other),
            };
            let Some(directive) = directive else {
                out.push('%');
                break;
            };
            match civil.directive(directive, self.utc_offset_seconds) {
                Some(text) if padded => out.push_str(&text),
                Some(text) => {
                    let trimmed = text.trim_start_matches(['0', ' ']);
                    out.push_str(if trimmed.is_empty() { "0" } else { trimmed });
                }
                None => {
                    out.push('%');
                    if !padded {
                        out.push('-');
                    }
                    out.push(directive);
                }
            }
        }
        out
    }

    /// Days to a Gregorian date (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days).
    fn civil(self) -> Civil {
        let seconds = self.unix_seconds.saturating_add(i64::from(self.utc_offset_seconds));
        let days = seconds.div_euclid(86_400);
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_from_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_from_march + 2) / 153;
        let day = day_from_march - (153 * month_from_march + 2) / 5 + 1;
        let month = (month_from_march + 2) % 12;
        let year = year_of_era + era * 400 + i64::from(month < 2);
        let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
        let before_march = 59 + i64::from(leap);
        let day_of_year = if month < 2 {
            day_from_march - 306
        } else {
            day_from_march + before_march
        };
        Civil {
            year,
            month: month as usize,
            day,
            day_of_year: day_of_year + 1,
            weekday: (days + 4).rem_euclid(7) as usize,
            second_of_day: seconds.rem_euclid(86_400),
        }
    }
}

impl Civil {
    fn directive(&self, directive: char, utc_offset_seconds: i32) -> Option<String> {
        let (hour, minute, second) = (
            self.second_of_day / 3600,
            self.second_of_day / 60 % 60,
            self.second_of_day % 60,
        );
        let number = self.month + 1;
        Some(match directive {
            'Y' => self.year.to_string(),
            'y' => format!("{:02}", self.year.rem_euclid(100)),
            'm' => format!("{number:02}"),
            'd' => format!("{:02}", self.day),
            'e' => format!("{:2}", self.day),
            'j' => format!("{:03}", self.day_of_year),
            'H' => format!("{hour:02}"),
            'I' => format!("{:02}", (hour + 11) % 12 + 1),
            'M' => format!("{minute:02}"),
            'S' => format!("{second:02}"),
            'p' => (if hour < 12 { "AM" } else { "PM" }).to_owned(),
            'B' => MONTHS[self.month].to_owned(),
            'b' | 'h' => MONTHS[self.month][..3].to_owned(),
            'A' => DAYS[self.weekday].to_owned(),
            'a' => DAYS[self.weekday][..3].to_owned(),
            'w' => self.weekday.to_string(),
            'u' => (if self.weekday == 0 { 7 } else { self.weekday }).to_string(),
            'F' => format!("{}-{number:02}-{:02}", self.year, self.day),
            'D' => format!("{number:02}/{:02}/{:02}", self.day, self.year.rem_euclid(100)),
            'T' => format!("{hour:02}:{minute:02}:{second:02}"),
            'R' => format!("{hour:02}:{minute:02}"),
            'z' => {
                let minutes = utc_offset_seconds.abs() / 60;
                let sign = if utc_offset_seconds < 0 { '-' } else { '+' };
                format!("{sign}{:02}{:02}", minutes / 60, minutes % 60)
            }
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::LocalTime;

    fn at(unix_seconds: i64, format: &str) -> String {
        LocalTime {
            unix_seconds,
            utc_offset_seconds: 0,
        }
        .format(format)
    }

    /// Expected texts are Python's `datetime.fromtimestamp(t, timezone.utc).strftime(f)`.
    #[test]
    fn formats_as_python_does() {
        assert_eq!(at(0, "%d %b %Y"), "01 Jan 1970");
        assert_eq!(at(951_782_399, "%A %F %T %j"), "Monday 2000-02-28 23:59:59 059");
        assert_eq!(at(951_782_400, "%a %e %B %y %I %p"), "Tue 29 February 00 12 AM");
        assert_eq!(at(1_735_646_400, "%j %w %u %D"), "366 2 2 12/31/24");
        assert_eq!(at(-1, "%F %R"), "1969-12-31 23:59");
        assert_eq!(at(1_767_225_600, "%-d/%-m %% %Q %"), "1/1 % %Q %");
    }

    #[test]
    fn applies_the_offset() {
        let time = LocalTime {
            unix_seconds: 0,
            utc_offset_seconds: -19_800,
        };
        assert_eq!(time.format("%F %R %z"), "1969-12-31 18:30 -0530");
    }
}
