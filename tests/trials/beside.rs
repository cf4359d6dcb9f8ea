//! Two further trials that are not rows of the table and are not counted: signals that do not mean the end, and metrics
//! that are read all the time.

use std::thread;
use std::time::{Duration, Instant};

use crate::form::Who;
use crate::load::closed_loop;
use crate::models::ECHO;
use crate::standard::{STANDARD, around, scrape};
use crate::subject::{OWN, PLAIN, Subject};
use crate::trial::{NotApplicable, Played, Trial};

/// SIGHUP and SIGUSR1, which end a tritonserver, in a storm.
pub fn signal_storm(trial: &Trial<'_>) -> Played {
    if trial.form.who != Who::Deuteron {
        return Err(NotApplicable("these signals end other servers".to_owned()));
    }
    let subject = Subject::start(trial, OWN)?;
    around(trial, &subject, STANDARD, || {
        let count = trial.size(50, 500);
        for index in 0..count {
            subject.signal(["HUP", "USR1"][index % 2]);
        }
        trial.figure(format!("{count} signals"));
    });
    Ok(())
}

/// A hundred scrapes of the metrics a second, under load.
pub fn scraped(trial: &Trial<'_>) -> Played {
    let subject = Subject::start(trial, PLAIN)?;
    around(trial, &subject, STANDARD, || {
        let time = trial.size(Duration::from_secs(1), Duration::from_secs(10));
        let (looks, load) = thread::scope(|scope| {
            let load = scope.spawn(|| closed_loop(&subject, ECHO, 4, time));
            let (start, mut whole) = (Instant::now(), 0);
            let mut tried = 0;
            while start.elapsed() < time {
                tried += 1;
                whole += u32::from(scrape(&subject).contains("nv_inference_request_success"));
                thread::sleep(Duration::from_millis(10));
            }
            ((whole, tried), load.join().expect("no client panics"))
        });
        let answered = load.iter().filter(|record| record.is_answered()).count();
        trial.figure(format!("{} of {} looks whole, {answered} of {} answered", looks.0, looks.1, load.len()));
        trial.check(looks.0 == looks.1, || format!("{} of {} looks are whole", looks.0, looks.1));
        trial.check(answered == load.len(), || format!("{answered} of {} answered", load.len()));
    });
    Ok(())
}
