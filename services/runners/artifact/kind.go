package artifact

import (
	"slices"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// Format of the file that a runner uploads.
type Format string

// The formats.
const (
	Zip  Format = "zip"
	Gzip Format = "gzip"
	Raw  Format = "raw"
)

// Types with a meaning for the service.
const (
	// Archive has the files that the job keeps. Other jobs download it.
	Archive = "archive"
	// Metadata lists the files of an archive.
	Metadata = "metadata"
	// Trace is the output of a job that has ended.
	Trace = "trace"
)

// formats has the format of each type. All but the types above are reports, which are stored and not evaluated.
var formats = map[string]Format{
	Archive: Zip, Metadata: Gzip, Trace: Raw,
	"junit": Gzip, "dotenv": Gzip, "metrics": Gzip, "coverage_report": Gzip, "cyclonedx": Gzip,
	"codequality": Raw, "sast": Raw, "secret_detection": Raw, "dependency_scanning": Raw, "container_scanning": Raw,
	"dast": Raw, "terraform": Raw, "requirements": Raw, "accessibility": Raw, "browser_performance": Raw,
	"load_performance": Raw, "api_fuzzing": Raw, "coverage_fuzzing": Raw, "annotations": Gzip,
}

// Types returns all types in alphabetical order.
func Types() []string {
	types := make([]string, 0, len(formats))
	for name := range formats {
		types = append(types, name)
	}
	slices.Sort(types)
	return types
}

// Kind is the type and the format of an artifact.
type Kind struct {
	Type   string
	Format Format
}

// ParseKind returns the kind with these names. Each type has one format.
func ParseKind(typ, format string) (Kind, error) {
	want, known := formats[typ]
	switch {
	case !known:
		return Kind{}, fault.New(errcode.InvalidArgument, "artifact_type: %.100q is not a type of artifacts: use archive or "+
			"a type of report", typ)
	case format != string(want):
		return Kind{}, fault.New(errcode.InvalidArgument, "artifact_format: %.100q is not the format of %s: use %s", format,
			typ, want)
	}
	return Kind{Type: typ, Format: want}, nil
}

// Sizes are the largest artifacts, in bytes.
type Sizes struct {
	Archive  int64
	Metadata int64
	Trace    int64
	// Report is for all other types.
	Report int64
}

// DefaultSizes returns sizes that suit most projects.
func DefaultSizes() Sizes {
	return Sizes{Archive: 1 << 30, Metadata: 32 << 20, Trace: 64 << 20, Report: 32 << 20}
}

// Of returns the largest size of a type.
func (s Sizes) Of(typ string) int64 {
	switch typ {
	case Archive:
		return s.Archive
	case Metadata:
		return s.Metadata
	case Trace:
		return s.Trace
	default:
		return s.Report
	}
}
