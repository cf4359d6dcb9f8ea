//! Forks the processes of instances from the template of their version ([`crate::python::template`]).

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_passcred;
use rustix::process::Pid;

use crate::limits::PYTHON_FORK_WAIT;
use crate::python::adoption::AdoptionWindow;
use crate::python::context::ModelProgram;
use crate::python::cores::ProcessShare;
use crate::python::files::receive_sender;
use crate::python::instance::PythonInstance;
use crate::python::link::PythonLink;
use crate::python::message::{self, LogLevel};
use crate::python::spawn::{ForkedProcess, adopt};
use crate::python::starter::{ProcessStarter, START_PAUSE, StartMode};
use crate::python::template::ModelTemplate;
use base::error::Error;

impl ProcessStarter {
    /// Starts the template, before several instances are started of which this is the first, and waits for its import. If
    /// it cannot be forked, it becomes that instance, which is returned.
    ///
    /// # Errors
    /// That of the import.
    pub(super) fn prepare_template(&self, first: &str) -> Result<Option<PythonInstance>, Error> {
        let share = self.share(first);
        let mut slot = self.template.lock();
        if slot
            .as_ref()
            .is_some_and(|template| template.share == share && template.process.process.has_ended().is_none())
        {
            return Ok(None);
        }
        *slot = None;
        if !self.forks(&share) {
            return Ok(None);
        }
        let mut process = self.spawn(first, StartMode::Template)?;
        let reason = self.wait_completed(&mut process)?;
        if reason.is_empty() {
            *slot = Some(ModelTemplate { process, share });
            return Ok(None);
        }
        let text = format!("the instances of '{}' are not forked from one process: {reason}", self.context.name);
        self.context.log(LogLevel::Info, &text);
        process.begin_start();
        self.send_init(&mut process, first, self.mode)?;
        Ok(Some(process))
    }

    /// Returns true if instances with this share are forked.
    fn forks(&self, share: &ProcessShare) -> bool {
        match self.context.program {
            ModelProgram::Python { forks, .. } if self.mode == StartMode::Serve => {
                forks.unwrap_or_else(|| self.count_of(share) > 1)
            }
            _ => false,
        }
    }

    /// Has the template fork the process of an instance and sends it its first messages. `None` if there is no template
    /// for it.
    pub(super) fn fork(&self, name: &str) -> Option<PythonInstance> {
        let share = self.share(name);
        let mut slot = self.template.lock();
        let outcome = self.try_fork(slot.as_ref().filter(|template| template.share == share)?, name);
        if let Err(why) = &outcome {
            *slot = None;
            let model = &self.context.name;
            let text = format!("the template of '{model}' {why}: its instances start without it from now on");
            self.context.log(LogLevel::Warning, &text);
        }
        outcome.ok()
    }

    /// The error says of the template why it could not.
    fn try_fork(&self, template: &ModelTemplate, name: &str) -> Result<PythonInstance, String> {
        if let Some(reason) = template.process.process.has_ended() {
            return Err(format!("has ended ({reason})"));
        }
        let cannot = |error: io::Error| format!("cannot be forked ({error})");
        let refused = |error: Error| format!("cannot be forked ({error})");
        let (opened, ends) = self.open().map_err(refused)?;
        let (stdout, stdout_end) = io::pipe().map_err(cannot)?;
        let (stderr, stderr_end) = io::pipe().map_err(cannot)?;
        let [requests, responses] = opened.regions().map_err(refused)?;
        let files = [ends.main.as_fd(), ends.aux.as_fd(), requests, responses, stdout_end.as_fd(), stderr_end.as_fd()];
        set_socket_passcred(opened.link.main.socket(), true).map_err(|errno| cannot(errno.into()))?;
        let window = AdoptionWindow::open().map_err(cannot)?;
        let mut order = Vec::new();
        message::put_fork(&mut order);
        template.process.link.main.send_with_descriptors(&order, &files).map_err(cannot)?;
        // From here on the template alone has them, and their end is its refusal.
        drop((ends, stdout_end, stderr_end));
        let pid = self.wait_birth(&opened.link)?;
        drop(window);
        set_socket_passcred(opened.link.main.socket(), false).map_err(|errno| cannot(errno.into()))?;
        let forked = ForkedProcess {
            name: name.to_owned(),
            program: self.program(template.share.threads, true),
            memory: Arc::clone(&self.context.memory),
            pid,
            stdout: stdout.into(),
            stderr: stderr.into(),
        };
        let process = self.host.adopt(adopt(forked).map_err(cannot)?).map_err(refused)?;
        let mut instance = self.begin(name, opened, process).map_err(refused)?;
        self.send_init(&mut instance, name, self.mode).map_err(refused)?;
        Ok(instance)
    }

    /// Waits for the first byte of a forked process. Returns its id.
    fn wait_birth(&self, link: &PythonLink) -> Result<Pid, String> {
        let clock = self.context.clock();
        let until = clock() + PYTHON_FORK_WAIT;
        loop {
            match receive_sender(link.main.socket()) {
                Ok(Some(pid)) => return Ok(pid),
                Err(Errno::AGAIN) if clock() < until => {
                    let pause = Timespec::try_from(START_PAUSE).ok();
                    // An interrupted sleep only ends early.
                    let _ = poll(&mut [PollFd::from_borrowed_fd(link.main.socket(), PollFlags::IN)], pause.as_ref());
                }
                Err(Errno::AGAIN) => return Err(format!("has forked nothing in {PYTHON_FORK_WAIT:?}")),
                Ok(None) | Err(_) => return Err("refused to fork".to_owned()),
            }
        }
    }
}
