//! The channels of a file to those of the output.

use base::error::Error;

use crate::limits::AUDIO_SAMPLES_MAX;
use crate::vector::mean_as_numpy;

/// The channels of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelMix {
    All,
    Mean,
    /// The channel with this index.
    One(usize),
}

/// Takes frames, and keeps the samples of the channels of the output.
pub struct Mixer {
    mix: ChannelMix,
    channel_count: usize,
    /// Samples that came, those of all channels.
    sample_count: usize,
    channels: Vec<Vec<f32>>,
}

impl Mixer {
    /// # Errors
    /// `InvalidArgument` if the file says that it has too many samples, or lacks the channel.
    pub fn new(mix: ChannelMix, channel_count: usize, frame_count: Option<usize>) -> Result<Self, Error> {
        if let ChannelMix::One(index) = mix
            && index >= channel_count
        {
            return Err(Error::invalid(format!("the file has {channel_count} channels, but \"channel\" is {index}")));
        }
        check(frame_count.unwrap_or(0).saturating_mul(channel_count))?;
        let kept = if mix == ChannelMix::All { channel_count } else { 1 };
        Ok(Self { mix, channel_count, sample_count: 0, channels: vec![Vec::new(); kept] })
    }

    /// Takes frames: samples of all channels, one frame after the other.
    ///
    /// # Errors
    /// `InvalidArgument` if there are too many samples by now.
    pub fn push(&mut self, frames: &[f32]) -> Result<(), Error> {
        self.sample_count = self.sample_count.saturating_add(frames.len());
        check(self.sample_count)?;
        let count = self.channel_count;
        match (&mut self.channels[..], self.mix) {
            ([samples], ChannelMix::All | ChannelMix::Mean) if count == 1 => samples.extend_from_slice(frames),
            ([samples], ChannelMix::Mean) if count == 2 => {
                samples.extend(frames.as_chunks().0.iter().map(|[left, right]| (left + right) / 2.0));
            }
            ([samples], ChannelMix::Mean) => samples.extend(frames.chunks_exact(count).map(mean_as_numpy)),
            ([samples], ChannelMix::One(index)) => samples.extend(frames.iter().skip(index).step_by(count)),
            (channels, _) => {
                for (index, samples) in channels.iter_mut().enumerate() {
                    samples.extend(frames.iter().skip(index).step_by(count));
                }
            }
        }
        Ok(())
    }

    /// The samples of each channel of the output.
    pub fn into_channels(self) -> Vec<Vec<f32>> {
        self.channels
    }
}

fn check(sample_count: usize) -> Result<(), Error> {
    if sample_count > AUDIO_SAMPLES_MAX {
        return Err(Error::invalid(format!(
            "the file has {sample_count} samples or more, but at most {AUDIO_SAMPLES_MAX} are allowed"
        )));
    }
    Ok(())
}
