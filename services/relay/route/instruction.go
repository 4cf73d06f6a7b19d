package route

import (
	"encoding/json"
	"fmt"
	"regexp"
)

// Instruction is what a stream is opened with: where its bytes shall go. Who gets it follows it and looks for nothing.
type Instruction struct {
	AgentID int64 `json:"agent_id"`
	// ConnectionID is the replica of the agent; its own on the way to the agent.
	ConnectionID int64 `json:"connection_id"`
	// Target is what the agent shall connect to: [KubernetesAPI], or a name that the agent's configuration has.
	Target string `json:"target"`
	// Trace is the traceparent of the request, empty for none.
	Trace string `json:"trace,omitempty"`
}

// KubernetesAPI is the target that every agent has which is in a cluster.
const KubernetesAPI = "kubernetes"

var traceparent = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// maxTarget is the longest name of a target.
const maxTarget = 63

// ValidTarget says whether it could be the name of a target: lower-case letters, digits and dashes within, at most 63.
func ValidTarget(name string) bool {
	for i := range len(name) {
		c := name[i]
		within := c == '-' && i > 0 && i < len(name)-1
		if !within && (c < 'a' || 'z' < c) && (c < '0' || '9' < c) {
			return false
		}
	}
	return name != "" && len(name) <= maxTarget
}

// Encode makes a stream's head.
func (i Instruction) Encode() []byte {
	head, err := json.Marshal(i)
	if err != nil {
		panic(err) // numbers and texts have no other outcome
	}
	return head
}

// Decode reads a stream's head.
func Decode(head []byte) (Instruction, error) {
	var i Instruction
	if err := json.Unmarshal(head, &i); err != nil {
		return Instruction{}, fmt.Errorf("the stream was opened with something else than an instruction: %w", err)
	}
	switch {
	case i.AgentID <= 0 || i.ConnectionID <= 0:
		return Instruction{}, fmt.Errorf("the stream was opened for agent %d, connection %d: both must be positive", i.AgentID, i.ConnectionID)
	case !ValidTarget(i.Target):
		return Instruction{}, fmt.Errorf("the stream was opened for target %.70q, which is no name of one", i.Target)
	case i.Trace != "" && !traceparent.MatchString(i.Trace):
		return Instruction{}, fmt.Errorf("the stream was opened with a trace that is none")
	}
	return i, nil
}
