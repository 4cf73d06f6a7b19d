package trace

import (
	"errors"
	"fmt"
	"hash/crc32"
)

// DefaultLimit is the size in bytes from which a trace accepts no more.
const DefaultLimit = 4 << 20

// MaxResends is how often a runner is asked to send a trace again whose checksum differs. Then the trace is kept as it
// is, not verified, so that its job can end.
const MaxResends = 3

// State is what is known of a trace. The zero value is an empty trace.
type State struct {
	// Generation counts how often the runner began again.
	Generation int `json:"generation"`
	// Size is the number of bytes received in this generation, held ones included.
	Size int64 `json:"size"`
	// CRC is the CRC-32 (IEEE) of the received bytes, before they were masked.
	CRC  uint32 `json:"crc"`
	Held Held   `json:"held"`

	// Longest earlier generation; its Size is 0 if there is none.
	Longest Generation `json:"longest"`

	// Ended: nothing can be appended. Final is then the generation that is the trace.
	Ended    bool       `json:"ended"`
	Verified bool       `json:"verified"` // the checksum of the runner is that of the received bytes
	Full     bool       `json:"full"`     // it ended because it exceeded its limit
	Final    Generation `json:"final"`
}

// Generation is the number of a generation with its size in bytes.
type Generation struct {
	Number int   `json:"number"`
	Size   int64 `json:"size"`
}

// Write is what has to be stored with a new state.
type Write struct {
	Generation int
	Offset     int64
	Data       []byte // empty: nothing to store
}

// RangeError reports bytes that do not continue the trace (416).
type RangeError struct {
	Offset int64 // of the request
	Size   int64 // at which the runner has to continue
}

func (e *RangeError) Error() string {
	return fmt.Sprintf("the trace has %d bytes, and the request begins at byte %d: continue at byte %d",
		e.Size, e.Offset, e.Size)
}

var (
	// ErrEnded reports that the trace is complete.
	ErrEnded = errors.New("the trace has ended")
	// ErrTooLarge reports a trace over the limit (403).
	ErrTooLarge = errors.New("the trace exceeds its limit")
	// ErrMask reports a state that was made with another mask: the masked values of a job must not change.
	ErrMask = errors.New("the held bytes of the trace belong to other masked values")
)

// Append accepts data that begins at offset. Errors, after which nothing has changed: *[RangeError], [ErrTooLarge],
// [ErrEnded], [ErrMask].
func (s State) Append(mask *Mask, offset int64, data []byte, limit int64) (State, Write, error) {
	switch {
	case s.Full:
		return s, Write{}, ErrTooLarge
	case s.Ended:
		return s, Write{}, ErrEnded
	case offset != s.Size:
		return s, Write{}, &RangeError{Offset: offset, Size: s.Size}
	case s.Size+int64(len(data)) > limit:
		return s, Write{}, ErrTooLarge
	}
	stored, held, ok := mask.apply(s.Held, data)
	if !ok {
		return s, Write{}, ErrMask
	}
	w := Write{Generation: s.Generation, Offset: s.stored(), Data: stored}
	s.CRC = crc32.Update(s.CRC, crc32.IEEETable, data)
	s.Size += int64(len(data))
	s.Held = held
	return s, w, nil
}

// stored returns how many bytes of this generation are stored.
func (s State) stored() int64 { return s.Size - int64(s.Held.Length) }

// Visible returns the generation that readers see: the longest one, and the final one after the end. Its size counts
// stored bytes only.
func (s State) Visible() Generation {
	switch {
	case s.Ended:
		return s.Final
	case s.stored() >= s.Longest.Size:
		return Generation{Number: s.Generation, Size: s.stored()}
	default:
		return s.Longest
	}
}

// Report is what a runner says about its trace at the end of a job.
type Report struct {
	// Checked is false for a runner that reports no checksum, and for a job that ends without its runner.
	Checked bool
	CRC     uint32
	Size    int64
}

// Finish ends the trace, and returns true, or begins a new generation, for which the runner has to send all again
// (412). A trace that has ended stays as it is. The error is [ErrMask].
func (s State) Finish(mask *Mask, report Report) (State, Write, bool, error) {
	if s.Ended {
		return s, Write{}, true, nil
	}
	matches := report.CRC == s.CRC && report.Size == s.Size
	if report.Checked && !matches && s.Generation < MaxResends {
		if s.stored() >= s.Longest.Size {
			s.Longest = Generation{Number: s.Generation, Size: s.stored()}
		}
		return State{Generation: s.Generation + 1, Longest: s.Longest}, Write{}, false, nil
	}
	rest, ok := mask.flush(s.Held)
	if !ok {
		return s, Write{}, false, ErrMask
	}
	s, w := s.end(rest)
	s.Verified = report.Checked && matches && s.Final.Number == w.Generation
	return s, w, true, nil
}

// end ends the trace with the bytes that were held.
func (s State) end(rest []byte) (State, Write) {
	w := Write{Generation: s.Generation, Offset: s.stored(), Data: rest}
	s.Ended, s.Held = true, Held{}
	s.Final = Generation{Number: s.Generation, Size: s.Size}
	if s.Size < s.Longest.Size { // the runner shortened its trace
		s.Final = s.Longest
	}
	return s, w
}
