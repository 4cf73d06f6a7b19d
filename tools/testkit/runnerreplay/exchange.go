package runnerreplay

import (
	"bytes"
	_ "embed" // exchanges.jsonl
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
)

//go:embed exchanges.jsonl
var recording []byte

// Exchange is a recorded request and its answer.
type Exchange struct {
	// Request is the method, the path and the query.
	Request string            `json:"request"`
	Headers map[string]string `json:"headers"`
	// Body with JSON.
	Body json.RawMessage `json:"body,omitempty"`
	// Trace is the start of a part of a trace.
	Trace string `json:"trace,omitempty"`
	// Files of an uploaded archive.
	Files  map[string]string `json:"files,omitempty"`
	Answer Answer            `json:"answer"`
	// Replay says what happens around the request.
	Replay Cause `json:"replay"`
	// Repeat is how often the exchange was repeated; 0 means once.
	Repeat int `json:"repeat,omitempty"`
}

// Answer is a recorded answer.
type Answer struct {
	Status  int               `json:"status"`
	Headers map[string]string `json:"headers,omitempty"`
	Body    json.RawMessage   `json:"body,omitempty"`
}

// Cause is what leads to the recorded answers.
type Cause struct {
	// Offer: the job of the answer becomes pending before the request.
	Offer bool `json:"offer,omitempty"`
	// Cancel: a user cancels the job before the request. End: the server ends it.
	Cancel bool `json:"cancel,omitempty"`
	End    bool `json:"end,omitempty"`
	// Lose: only so many bytes of the part of the trace reach the server.
	Lose int64 `json:"lose,omitempty"`
	// Damage: a byte of the part is changed on its way.
	Damage bool `json:"damage,omitempty"`
}

// Method returns the method.
func (e Exchange) Method() string { method, _, _ := strings.Cut(e.Request, " "); return method }

// Path returns the path with the query.
func (e Exchange) Path() string { _, path, _ := strings.Cut(e.Request, " "); return path }

// Exchanges returns the recording, in its order.
func Exchanges() []Exchange { return exchanges() }

var exchanges = sync.OnceValue(func() []Exchange {
	lines := json.NewDecoder(bytes.NewReader(recording))
	var head struct {
		Infos map[string]json.RawMessage `json:"infos"`
	}
	if err := lines.Decode(&head); err != nil {
		panic(fmt.Sprintf("exchanges.jsonl: first line: %v", err))
	}
	var all []Exchange
	for {
		var e Exchange
		if err := lines.Decode(&e); err == io.EOF {
			return all
		} else if err != nil {
			panic(fmt.Sprintf("exchanges.jsonl: exchange %d: %v", len(all)+1, err))
		}
		for name, info := range head.Infos {
			e.Body = bytes.ReplaceAll(e.Body, []byte(`"{`+name+`}"`), info)
		}
		all = append(all, e)
	}
})
