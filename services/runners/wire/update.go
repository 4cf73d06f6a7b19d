package wire

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// UpdateState is the state that a runner reports.
type UpdateState string

// The states.
const (
	UpdateRunning UpdateState = "running"
	UpdateSuccess UpdateState = "success"
	UpdateFailed  UpdateState = "failed"
)

// UpdateRequest reports the state of a job.
type UpdateRequest struct {
	// Token of the job. It may be in a header instead.
	Token string      `json:"token"`
	Info  Info        `json:"info"`
	State UpdateState `json:"state"`
	// FailureReason of a failed job.
	FailureReason string `json:"failure_reason,omitempty"`
	// Checksum of the whole trace. Output repeats it, with the size.
	Checksum Checksum `json:"checksum,omitempty"`
	Output   Output   `json:"output"`
	ExitCode *int32   `json:"exit_code,omitempty"`
}

// Output describes the whole trace.
type Output struct {
	Checksum Checksum `json:"checksum,omitempty"`
	// ByteSize is absent in old versions.
	ByteSize *int64 `json:"bytesize,omitempty"`
}

// Validate implements [Request].
func (r *UpdateRequest) Validate() error {
	if err := checkVisible("token", r.Token, MaxToken); err != nil {
		return err
	}
	if err := r.Info.validate(); err != nil {
		return err
	}
	if !slices.Contains([]UpdateState{UpdateRunning, UpdateSuccess, UpdateFailed}, r.State) {
		return invalid("state", "must be running, success or failed")
	}
	if err := checkTexts(field{name: "failure_reason", text: r.FailureReason}); err != nil {
		return err
	}
	if size := r.Output.ByteSize; size != nil && (*size < 0 || *size >= maxOffset) {
		return invalid("output.bytesize", "is not a size in bytes")
	}
	for name, sum := range map[string]Checksum{"checksum": r.Checksum, "output.checksum": r.Output.Checksum} {
		if _, ok := sum.CRC32(); sum != "" && !ok {
			return invalid(name, `must be "crc32:" and eight hexadecimal digits`)
		}
	}
	if r.Checksum != "" && r.Output.Checksum != "" && r.Checksum != r.Output.Checksum {
		return invalid("output.checksum", "differs from checksum")
	}
	return nil
}

// Trace returns the checksum and the size of the whole trace. Each is nil if the runner does not report it.
func (r *UpdateRequest) Trace() (crc32 *uint32, size *int64) {
	for _, sum := range []Checksum{r.Output.Checksum, r.Checksum} {
		if value, ok := sum.CRC32(); ok {
			return &value, r.Output.ByteSize
		}
	}
	return nil, r.Output.ByteSize
}

// Checksum of a trace: "crc32:" and the CRC32 (IEEE) as eight lower-case hexadecimal digits.
type Checksum string

const checksumPrefix = "crc32:"

// NewChecksum returns the text of a CRC32.
func NewChecksum(crc32 uint32) Checksum {
	return Checksum(fmt.Sprintf("%s%08x", checksumPrefix, crc32))
}

// CRC32 returns the value, and false if there is none.
func (c Checksum) CRC32() (uint32, bool) {
	digits, found := strings.CutPrefix(string(c), checksumPrefix)
	value, err := strconv.ParseUint(digits, 16, 32)
	return uint32(value), found && err == nil && NewChecksum(uint32(value)) == c
}
