"""Every exception gradlet raises. User mistakes and compiler faults are different branches of one tree.

GradletError
├── UserError            the caller can fix it; the message names the argument and the remedy
│   ├── ShapeError       (also a ValueError)
│   │   └── NoAxesError  (also a TypeError): len() or iteration of a tensor without axes
│   ├── DTypeError       (also a TypeError)
│   ├── IndexingError    (also an IndexError)
│   ├── ArgumentError    (also a ValueError)
│   ├── DeviceError      (also a RuntimeError)
│   ├── ExchangeError    (also a BufferError): memory that cannot be shared with another library
│   ├── SettingError     (also a ValueError): a bad environment variable or Context value
│   ├── FileFormatError  (also a ValueError): a truncated, hostile or unknown file
│   ├── DownloadError    (also an OSError): a file could not be loaded from the network
│   ├── GradientError    (also a RuntimeError)
│   ├── JitError         (also a RuntimeError)
│   └── MissingExtraError (also an ImportError): an optional dependency is not installed
└── CompilerError        a fault of gradlet itself; the message names the pass and the node
    ├── SpecError        a graph breaks the rules of its stage
    ├── RewriteError     rewriting loops or does not end
    └── RenderError      code generation failed
"""


class GradletError(Exception):
    """Base of all errors raised on purpose by gradlet."""


class UserError(GradletError):
    """The caller's mistake: the message names the argument and the remedy."""


class ShapeError(UserError, ValueError):
    """Shapes do not fit the operation."""


class SizeLimitError(ShapeError):
    """It depends on the values of sizes that are known only at launch: other limits of them may decide it."""


class SizeStepError(SizeLimitError):
    """It depends on the values of sizes that are known only at launch: multiples of some number would decide it."""


class NoAxesError(ShapeError, TypeError):
    """A tensor without axes has no length and no elements to go through."""


class DTypeError(UserError, TypeError):
    """Data types do not fit the operation."""


class IndexingError(UserError, IndexError):
    """An index is out of range or of an unsupported kind."""


class ArgumentError(UserError, ValueError):
    """An argument has a value outside what the function accepts."""


class DeviceError(UserError, RuntimeError):
    """A device is unknown, unavailable, out of memory, or operands live on different devices."""


class ExchangeError(UserError, BufferError):
    """Memory cannot be shared with another library as it was asked for."""


class SettingError(UserError, ValueError):
    """An environment variable or Context value is not one of the allowed ones."""


class FileFormatError(UserError, ValueError):
    """A file is truncated, hostile, or of an unknown format."""


class DownloadError(UserError, OSError):
    """A file could not be loaded from the network, or is not what was asked for."""


class GradientError(UserError, RuntimeError):
    """A gradient was asked for where none exists."""


class JitError(UserError, RuntimeError):
    """A jitted function was used in a way that could give a wrong answer."""


class ScheduleMissError(UserError, RuntimeError):
    """Something new was to be computed where SCHEDULE_MISS=raise says that nothing is new."""


class MissingExtraError(UserError, ImportError):
    """An optional dependency is missing; the message holds the command that installs it."""


class CompilerError(GradletError):
    """A fault of gradlet itself. Please report it with the printed node."""


class SpecError(CompilerError):
    """A graph breaks the rules of its stage."""


class RewriteError(CompilerError):
    """A rewrite loops, or needs more steps than any terminating rule set could."""


class RenderError(CompilerError):
    """A linear program could not be rendered or compiled."""
