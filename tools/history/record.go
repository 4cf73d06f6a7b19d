package history

import (
	"encoding/json"
	"fmt"

	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/event"
)

// Record is one message of a stream.
type Record struct {
	Subject  string      `json:"subject"`
	Sequence uint64      `json:"sequence"`
	Header   nats.Header `json:"header,omitempty"`
	Data     []byte      `json:"data"`
}

// Findings are descriptions of faults.
type Findings []string

func (f *Findings) addf(format string, args ...any) { *f = append(*f, fmt.Sprintf(format, args...)) }

// each calls take with the data of every record of the type, in order. A record that cannot be
// decoded is a finding.
func each[T any](f *Findings, records []Record, kind string, take func(r Record, data T)) {
	for _, r := range records {
		e, err := event.Decode(r.Header, r.Data)
		if err == nil && e.Type() != kind {
			continue
		}
		var data T
		if err == nil {
			err = json.Unmarshal(e.Data(), &data)
		}
		if err != nil {
			f.addf("sequence %d, %s: %v", r.Sequence, r.Subject, err)
			continue
		}
		take(r, data)
	}
}
