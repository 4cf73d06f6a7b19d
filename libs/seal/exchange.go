package seal

import (
	"lockstep.internal/schemas/gen/errcode"
)

// Request is what a dispatcher asks on `lockstep.<cell>.secret.<agent>.<workspace>`, as JSON: for
// the values of the Secret that its desired event names with this digest.
type Request struct {
	// Name of the Secret.
	Name string `json:"name"`
	// Digest of its values.
	Digest string `json:"digest"`
}

// Reply answers a [Request], as JSON: with a box, or with an error. The box is what [Values.Seal]
// makes of all values, named as in the Secret, with the label [Request.Label], for the agent's key;
// so a box cannot be passed off as another workspace's, or an older one as a newer.
type Reply struct {
	Box   []byte      `json:"box,omitempty"`
	Error *ReplyError `json:"error,omitempty"`
}

// ReplyError says why there are no values.
type ReplyError struct {
	Code errcode.Code `json:"code"`
	// Message is a sentence for the user.
	Message string `json:"message"`
}

// Label is what the answer's box is tied to.
func (r Request) Label(workspace string) string { return "secret/" + workspace + "/" + r.Digest }
