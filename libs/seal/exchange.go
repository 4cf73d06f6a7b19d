package seal

import (
	"lockstep.internal/schemas/gen/errcode"
)

// Request is the JSON body of a dispatcher's request on `lockstep.<cell>.secret.<agent>.<workspace>`: for the
// values of the Secret that its desired event references with this digest.
type Request struct {
	// Name of the Secret.
	Name string `json:"name"`
	// Digest of its values.
	Digest string `json:"digest"`
}

// Reply is the JSON reply to a [Request]: a box or an error. The box contains all values of the Secret by key. It is
// sealed with [Values.Seal] for the agent's key, with the label [Request.Label]. The label binds the box to a
// workspace and a digest.
type Reply struct {
	Box   []byte      `json:"box,omitempty"`
	Error *ReplyError `json:"error,omitempty"`
}

// ReplyError is the error of a rejected request.
type ReplyError struct {
	Code errcode.Code `json:"code"`
	// Message is a sentence for the user.
	Message string `json:"message"`
}

// Label returns the label of the reply's box.
func (r Request) Label(workspace string) string { return "secret/" + workspace + "/" + r.Digest }
