package route

import (
	"encoding/json"
	"fmt"
)

// Destination is the metadata of a stream: where its bytes go. The receiver uses it as is and never reroutes.
type Destination struct {
	AgentID int64 `json:"agent_id"`
	// ConnectionID is the connection of one agent replica; 0 means any, before the relay has chosen one.
	ConnectionID int64 `json:"connection_id"`
	// Target is [KubernetesAPI], a name in the agent's configuration, or a [Workspace].
	Target string `json:"target"`
	// Probe asks the relay that holds the connection whether the replica responds. Nothing is sent to the target.
	Probe bool `json:"probe,omitempty"`
}

// KubernetesAPI is a target of every agent in a cluster.
const KubernetesAPI = "kubernetes"

// maxTarget is the longest name of a target.
const maxTarget = 63

// ValidTarget reports whether name is a DNS label: 1 to 63 lower-case letters, digits and inner dashes.
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

// Encode returns the metadata of a stream.
func (d Destination) Encode() []byte {
	metadata, err := json.Marshal(d)
	if err != nil {
		panic(err) // numbers and strings can be marshalled
	}
	return metadata
}

// Decode reads the metadata of a stream.
func Decode(metadata []byte) (Destination, error) {
	var d Destination
	if err := json.Unmarshal(metadata, &d); err != nil {
		return Destination{}, fmt.Errorf("decode the metadata of a stream: %w", err)
	}
	switch {
	case d.AgentID <= 0 || d.ConnectionID <= 0:
		return Destination{}, fmt.Errorf("metadata of a stream: agent_id %d and connection_id %d must be positive",
			d.AgentID, d.ConnectionID)
	case !ValidTarget(d.Target) && !IsWorkspace(d.Target):
		return Destination{}, fmt.Errorf("metadata of a stream: target %.70q is not a valid name", d.Target)
	}
	return d, nil
}
