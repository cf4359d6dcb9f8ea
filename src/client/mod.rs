//! Commands that ask a server: `deuteron ask` sends one request, `deuteron health` asks whether a server is ready, `deuteron steps
//! compare` sends the same requests to a model.py and to its steps. Each has its arguments, read without side effects, and the function that `main` calls.

pub mod ask;
mod capture;
pub mod compare;
pub mod comparison;
pub mod difference;
pub mod health;
mod http_client;
pub mod question;
mod sample;
