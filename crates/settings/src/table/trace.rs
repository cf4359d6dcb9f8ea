//! The flags of traces: `--trace-config`, and those that it has replaced in tritonserver.

use crate::Settings;
use crate::trace::{parse_level, read_config, read_old};
use flags::Fallback::{Absent, Text, Value};
use flags::Flag;
use flags::Takes::{Many, One};

pub(super) const FLAGS: &[Flag<Settings>] = &[
    Flag {
        names: &["trace-config"],
        takes: Many("[MODE,]SETTING=VALUE"),
        default: Absent,
        help: "Which requests are traced: level=OFF, TIMESTAMPS or TENSORS (each given once more for both), rate=COUNT \
               (one request in COUNT, 1000), count=COUNT (-1 for any number), mode=triton or opentelemetry; where to: \
               triton,file=FILE and triton,log-frequency=COUNT, or opentelemetry,url=URL, resource=KEY=VALUE, \
               bsp_max_queue_size=COUNT, bsp_max_export_batch_size=COUNT and bsp_schedule_delay=MS",
        apply: |settings, value| {
            settings.warnings.extend(read_config(&mut settings.trace, value)?);
            Ok(())
        },
    },
    Flag {
        names: &["trace-file"],
        takes: One("FILE"),
        default: Text("none"),
        help: "Deprecated: --trace-config=triton,file=FILE",
        apply: |settings, value| {
            settings.trace.old.file = Some(value.to_owned());
            Ok(())
        },
    },
    Flag {
        names: &["trace-level"],
        takes: Many("OFF|TIMESTAMPS|TENSORS"),
        default: Absent,
        help: "Deprecated: --trace-config=level=LEVEL",
        apply: |settings, value| {
            settings.trace.old.levels.push(parse_level(value)?);
            Ok(())
        },
    },
    Flag {
        names: &["trace-rate"],
        takes: One("COUNT"),
        default: Value("1000"),
        help: "Deprecated: --trace-config=rate=COUNT",
        apply: |settings, value| read_old(&mut settings.trace.old.rate, value, 1_000),
    },
    Flag {
        names: &["trace-count"],
        takes: One("COUNT"),
        default: Value("-1"),
        help: "Deprecated: --trace-config=count=COUNT",
        apply: |settings, value| read_old(&mut settings.trace.old.count, value, -1),
    },
    Flag {
        names: &["trace-log-frequency"],
        takes: One("COUNT"),
        default: Value("0"),
        help: "Deprecated: --trace-config=triton,log-frequency=COUNT",
        apply: |settings, value| read_old(&mut settings.trace.old.log_frequency, value, 0),
    },
];
