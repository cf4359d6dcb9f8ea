//! Configurations that are derived from a folder of the Hugging Face hub.

use base::error::Error;
use wire::proto::inference::ModelConfig;

use crate::config::ConfigDraft;
use crate::parse::text::{ConfigText, Notation};

impl ConfigDraft {
    /// The draft of a folder of the hub, whose tensors and steps are derived once the model's file was read. Without steps it
    /// stays that of the file alone.
    pub fn of_hub_folder(self) -> Self {
        Self { is_of_hub: self.has_steps, ..self }
    }

    /// Returns true if its tensors and steps are to be derived from a folder of the hub.
    pub const fn is_of_hub(&self) -> bool {
        self.is_of_hub
    }

    /// Takes over all but the name from a configuration that was derived from a folder.
    ///
    /// # Errors
    /// `InvalidArgument` if the text does not parse.
    pub fn with_derived(mut self, text: &str) -> Result<Self, Error> {
        let text = ConfigText::decode(Notation::Text, text.as_bytes())?;
        let derived: ModelConfig = text.message.transcode_to().map_err(|error| {
            Error::internal(format!("model '{}': its configuration cannot be decoded: {error}", self.config.name))
        })?;
        (self.config.input, self.config.output) = (derived.input, derived.output);
        (self.config.max_batch_size, self.config.scheduling_choice) =
            (derived.max_batch_size, derived.scheduling_choice);
        self.config.parameters.extend(derived.parameters);
        Ok(Self { is_of_hub: false, ..self })
    }
}
