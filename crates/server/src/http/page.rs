//! Error pages: what the protocol answers where a filter, not a handler, says no.

use http::StatusCode;
use rollcall_core::Millis;

use crate::json;

/// The page as JSON.
pub fn json_page(status: StatusCode, message: &str, path: &str, now: Millis) -> Vec<u8> {
    let mut out = b"{\"timestamp\":".to_vec();
    json::string(&mut out, &timestamp(now));
    out.extend_from_slice(b",\"status\":");
    json::unsigned(&mut out, u64::from(status.as_u16()));
    out.extend_from_slice(b",\"error\":");
    json::string(&mut out, status.canonical_reason().unwrap_or_default());
    out.extend_from_slice(b",\"message\":");
    json::string(&mut out, message);
    out.extend_from_slice(b",\"path\":");
    json::string(&mut out, path);
    out.push(b'}');
    out
}

/// The page for browsers. Nothing that was sent stands in it but `message`, escaped.
pub fn html_page(status: StatusCode, message: &str) -> Vec<u8> {
    let reason = status.canonical_reason().unwrap_or_default();
    let escaped = message
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    format!(
        "<!doctype html><html lang=\"en\"><head><title>{0} {reason}</title></head><body><h1>{0} {reason}</h1><p>{escaped}</p></body></html>",
        status.as_u16()
    )
    .into_bytes()
}

/// `2026-11-30T00:48:49.580+00:00`
pub fn timestamp(at: Millis) -> String {
    let (days, rest) = (at.0 / 86_400_000, at.0 % 86_400_000);
    let (year, month, day) = date(days);
    let (seconds, millis) = (rest / 1000, rest % 1000);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{millis:03}+00:00",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}

/// Year, month and day of a number of days since 1970-01-01, in the Gregorian calendar.
fn date(days: u64) -> (u64, u64, u64) {
    // Counted in years that start in March, so that the leap day is the last of its year.
    let days = days + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_the_recorded_form() {
        assert_eq!(timestamp(Millis(0)), "1970-01-01T00:00:00.000+00:00");
        assert_eq!(
            timestamp(Millis(1_795_999_729_580)),
            "2026-11-30T00:48:49.580+00:00"
        );
        assert_eq!(
            timestamp(Millis(951_782_400_000)),
            "2000-02-29T00:00:00.000+00:00"
        );
    }

    #[test]
    fn a_page_has_the_recorded_fields() {
        let page = json_page(StatusCode::BAD_REQUEST, "m", "/p", Millis(0));
        assert_eq!(
            String::from_utf8(page).unwrap_or_default(),
            r#"{"timestamp":"1970-01-01T00:00:00.000+00:00","status":400,"error":"Bad Request","message":"m","path":"/p"}"#
        );
        let page = html_page(StatusCode::NOT_FOUND, "<x>");
        assert!(!String::from_utf8(page).unwrap_or_default().contains("<x>"));
    }
}
