//! PING as gRPC uses it (gRPC proposals A8 and A9, "keepalive"): ours to a client that is silent, the client's within
//! bounds, and the end of a connection by its age. Only connections that have carried a call follow these rules.

use std::time::Duration;

use base::limits::PING_INTERVAL_MIN;
use base::policy::KeepAlivePolicy;
use base::time::Instant;

/// Interval of a client's pings while it has no calls: what TCP's own keep-alive takes (RFC 9293 §3.8.4), as in gRPC.
const IDLE_PING_INTERVAL_MIN: Duration = Duration::from_secs(7_200);

/// The step that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeepAliveStep {
    /// Begin to drain.
    Drain,
    /// End the connection, whatever is open.
    End,
    /// Send a PING.
    Ping,
}

/// State of a connection under the rules.
#[derive(Debug)]
pub(super) struct KeepAlive {
    settings: KeepAlivePolicy,
    has_carried_call: bool,
    /// When the client sent something last, or its silence was looked at.
    heard_at: Instant,
    /// When the client must have sent something after our PING.
    pong_due: Option<Instant>,
    pings_without_data: u32,
    /// The client's last PING since we sent content, and how many were too early.
    pinged_at: Option<Instant>,
    strikes: u32,
    drain_at: Option<Instant>,
    end_at: Option<Instant>,
}

impl KeepAlive {
    /// The rules for a connection that begins now.
    pub(super) fn new(settings: KeepAlivePolicy, now: Instant) -> Self {
        Self {
            settings,
            has_carried_call: false,
            heard_at: now,
            pong_due: None,
            pings_without_data: 0,
            pinged_at: None,
            strikes: 0,
            drain_at: settings.age_max.map(|age| now + spread(age, now)),
            end_at: None,
        }
    }

    /// A call begins.
    pub(super) const fn handle_call(&mut self) {
        self.has_carried_call = true;
    }

    /// The client sent something: it is there.
    pub(super) const fn handle_input(&mut self, now: Instant) {
        self.heard_at = now;
        self.pong_due = None;
    }

    /// We sent content: PINGs around it are no idle ones.
    pub(super) const fn handle_content(&mut self) {
        self.pings_without_data = 0;
        self.pinged_at = None;
        self.strikes = 0;
    }

    /// The client sent a PING. Whether that is one too many. As in gRPC (proposals A8 and A18) one that comes early is a
    /// strike, but by default none is while a call is open: a client that waits for a long answer, with its keepalive at
    /// the usual 10 s, has nothing else to send. Such PINGs are bounded as all frames that move nothing are.
    pub(super) fn handle_ping(&mut self, has_streams: bool, now: Instant) -> bool {
        let settings = &self.settings;
        let interval = match settings.ping_interval_min {
            _ if !has_streams && !settings.permits_without_calls => IDLE_PING_INTERVAL_MIN,
            Some(interval) => interval,
            None if has_streams => Duration::ZERO,
            None => PING_INTERVAL_MIN,
        };
        let is_early = self.pinged_at.replace(now).is_some_and(|before| now.since(before) < interval);
        if !self.has_carried_call || !is_early {
            return false;
        }
        self.strikes = self.strikes.saturating_add(1);
        settings.ping_strikes_max > 0 && self.strikes > settings.ping_strikes_max
    }

    /// The next step that is due; to be polled until it returns `None`.
    pub(super) fn poll_step(&mut self, has_streams: bool, now: Instant) -> Option<KeepAliveStep> {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if !self.has_carried_call {
            return None;
        }
        if is_due(self.pong_due) || is_due(self.end_at) {
            (self.pong_due, self.end_at) = (None, None);
            return Some(KeepAliveStep::End);
        }
        if is_due(self.drain_at) {
            self.drain_at = None;
            self.end_at = self.settings.age_grace.map(|grace| now + grace);
            return Some(KeepAliveStep::Drain);
        }
        if self.pong_due.is_some() || !is_due(self.silent_at()) {
            return None;
        }
        // If no PING may be sent, the silence is looked at again after the same time.
        self.heard_at = now;
        let most = self.settings.pings_without_data_max;
        let may_ping = has_streams || self.settings.permits_without_calls;
        if !may_ping || most > 0 && self.pings_without_data >= most {
            return None;
        }
        self.pings_without_data = self.pings_without_data.saturating_add(1);
        self.pong_due = Some(now + self.settings.timeout);
        Some(KeepAliveStep::Ping)
    }

    /// When `poll_step` must be asked even if nothing arrives.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        if !self.has_carried_call {
            return None;
        }
        [self.pong_due.or(self.silent_at()), self.drain_at, self.end_at].into_iter().flatten().min()
    }

    /// When the client will have been silent for long.
    fn silent_at(&self) -> Option<Instant> {
        self.settings.time.map(|time| self.heard_at + time)
    }
}

/// An age within a tenth of the one that is asked for, as in gRPC: clients that came together do not all come back at
/// once. The clock's last digits are the chance.
fn spread(age: Duration, now: Instant) -> Duration {
    let percent = u32::try_from(now.as_nanos() % 21).unwrap_or_default().saturating_add(90);
    age.saturating_mul(percent) / 100
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    const SETTINGS: KeepAlivePolicy = KeepAlivePolicy {
        time: Some(Duration::from_millis(100)),
        timeout: Duration::from_millis(20),
        permits_without_calls: false,
        pings_without_data_max: 2,
        ping_interval_min: Some(Duration::from_millis(300)),
        ping_strikes_max: 2,
        age_max: None,
        age_grace: None,
    };

    fn at(millis: u64) -> Instant {
        Instant::from_micros(millis * 1_000)
    }

    /// Plays what happens at which millisecond (`call`, `input`, `content`, `ping`), with a call open until `idle`; tells
    /// when what is due, by the timers alone, up to `end`.
    fn timeline(settings: KeepAlivePolicy, happens: &[(u64, &str)], end: u64) -> String {
        let (mut keep_alive, mut has_streams) = (KeepAlive::new(settings, Instant::ZERO), false);
        let (mut told, mut clock) = (String::new(), Instant::ZERO);
        let mut happens = happens.iter().peekable();
        loop {
            let next = happens.peek().map(|(millis, _)| at(*millis));
            let due = keep_alive.poll_timeout().filter(|due| next.is_none_or(|next| *due <= next));
            let Some(now) = due.or(next).filter(|now| *now <= at(end)) else { return told };
            let now = now.max(clock);
            clock = now;
            while let Some(step) = keep_alive.poll_step(has_streams, now) {
                let _ = write!(told, "{}:{step:?} ", now.as_nanos() / 1_000_000);
                if step == KeepAliveStep::End {
                    return told;
                }
            }
            if due.is_some() {
                continue;
            }
            match happens.next().map_or("", |(_, what)| what) {
                "call" => {
                    keep_alive.handle_call();
                    has_streams = true;
                }
                "idle" => has_streams = false,
                "input" => keep_alive.handle_input(now),
                "content" => keep_alive.handle_content(),
                _ if keep_alive.handle_ping(has_streams, now) => told.push_str("too-many "),
                _ => {}
            }
        }
    }

    #[test]
    fn a_silent_client_gets_a_ping_and_ends_where_it_stays_silent() {
        let check = |happens: &[(u64, &str)], want: &str| assert_eq!(timeline(SETTINGS, happens, 1_000), want);
        check(&[(0, "call")], "100:Ping 120:End ");
        check(&[(0, "call"), (90, "input")], "190:Ping 210:End ");
        check(&[(0, "call"), (110, "input")], "100:Ping 210:Ping 230:End ");
        // Two without content in between, then none until there is some.
        let pongs = [(0, "call"), (110, "input"), (220, "input"), (500, "content")];
        check(&pongs, "100:Ping 210:Ping 520:Ping 540:End ");
        check(&[], "");
        check(&[(0, "call"), (50, "idle")], "");
        check(&[(0, "call"), (50, "idle"), (250, "call")], "300:Ping 320:End ");
    }

    #[test]
    fn a_client_without_calls_gets_pings_where_a_flag_permits_them() {
        let settings = KeepAlivePolicy { permits_without_calls: true, pings_without_data_max: 0, ..SETTINGS };
        let happens = [(0, "call"), (1, "idle"), (110, "input"), (215, "input"), (320, "input")];
        assert_eq!(timeline(settings, &happens, 1_000), "100:Ping 210:Ping 315:Ping 420:Ping 440:End ");
    }

    #[test]
    fn pings_that_come_too_early_are_strikes_until_content_is_sent() {
        let quiet = KeepAlivePolicy { time: None, ..SETTINGS };
        let check = |settings: KeepAlivePolicy, happens: &[(u64, &str)], want: &str| {
            assert_eq!(timeline(settings, happens, 9_000), want, "{happens:?}");
        };
        let pings = |from: u64, step: u64| (0..4).map(move |index| (from + index * step, "ping"));
        let after_call = |from, step| [(0, "call")].into_iter().chain(pings(from, step)).collect::<Vec<_>>();
        check(quiet, &after_call(1, 299), "too-many ");
        check(quiet, &after_call(1, 300), "");
        // Three strikes are one too many: the first ping does not count.
        check(quiet, &after_call(1, 1)[..4], "");
        check(
            quiet,
            &[(0, "call"), (1, "ping"), (2, "ping"), (3, "ping"), (4, "content"), (5, "ping"), (6, "ping")],
            "",
        );
        check(KeepAlivePolicy { ping_strikes_max: 0, ..quiet }, &after_call(1, 1), "");
        // Without a call they may come every two hours, or as often as with one where a flag permits them.
        let idle: Vec<_> = [(0, "call"), (1, "idle")].into_iter().chain(pings(2, 1_000)).collect();
        check(quiet, &idle, "too-many ");
        check(KeepAlivePolicy { permits_without_calls: true, ..quiet }, &idle, "");
        // A connection without any call does not belong to gRPC.
        check(quiet, &pings(1, 1).collect::<Vec<_>>(), "");
    }

    #[test]
    fn by_default_a_client_may_ping_at_any_rate_while_a_call_is_open() {
        let quiet = KeepAlivePolicy { time: None, ..KeepAlivePolicy::default() };
        let pings = |begin: u64, step: u64| (1..=1_000).map(move |count| (begin + count * step, "ping"));
        let told =
            |settings: KeepAlivePolicy, happens: &[(u64, &str)]| timeline(settings, happens, u64::MAX / 1_000_000);
        let long_call = |step| [(0, "call")].into_iter().chain(pings(0, step)).collect::<Vec<_>>();
        assert_eq!(told(quiet, &long_call(10_000)), "", "keepalive at 10 s");
        assert_eq!(told(quiet, &long_call(1)), "");
        // When the call is over, gRPC's rules hold again: three pings that come early are one too many.
        let idle = |step| [(0, "call"), (1, "idle")].into_iter().chain(pings(1, step).take(4)).collect::<Vec<_>>();
        assert_eq!(told(quiet, &idle(10_000)), "too-many ");
        let permitted = KeepAlivePolicy { permits_without_calls: true, ..quiet };
        assert_eq!(told(permitted, &idle(10_000)), "too-many ");
        assert_eq!(told(permitted, &idle(300_000)), "");
        // A flag that says a time is kept to, as tritonserver does.
        let strict = KeepAlivePolicy { ping_interval_min: Some(PING_INTERVAL_MIN), ..quiet };
        assert_eq!(told(strict, &long_call(10_000)[..5]), "too-many ");
    }

    #[test]
    fn a_connection_of_age_drains_and_ends_after_its_grace() {
        let old = KeepAlivePolicy {
            time: None,
            age_max: Some(Duration::from_millis(1_000)),
            age_grace: Some(Duration::from_millis(200)),
            ..SETTINGS
        };
        assert_eq!(timeline(old, &[(0, "call")], 9_000), "900:Drain 1100:End ");
        assert_eq!(timeline(KeepAlivePolicy { age_grace: None, ..old }, &[(0, "call")], 9_000), "900:Drain ");
        assert_eq!(timeline(old, &[(2_000, "call")], 9_000), "2000:Drain 2200:End ");
        let ages = (0..21).map(|nanos| spread(Duration::from_secs(100), Instant::from_nanos(nanos)).as_secs());
        assert!(ages.eq(90..=110));
    }
}
