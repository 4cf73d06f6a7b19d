package targets

import (
	"encoding/json"
	"fmt"

	"lockstep.internal/services/relay/route"
)

// maxTargets of one configuration.
const maxTargets = 1000

// Configuration of the agent, as a relay sends it.
type Configuration struct {
	Revision int64
	// Addresses of targets, by name.
	Addresses map[string]Address
	// Errors of skipped targets.
	Errors []error
}

// configJSON is one line of the stream.
type configJSON struct {
	Revision int64 `json:"config_revision"`
	Targets  []struct {
		Name    string `json:"name"`
		Address string `json:"address"`
	} `json:"relay_targets"`
}

// Parse reads one line.
func Parse(line []byte) (Configuration, error) {
	var decoded configJSON
	if err := json.Unmarshal(line, &decoded); err != nil {
		return Configuration{}, fmt.Errorf("decode the configuration: %w", err)
	}
	if decoded.Revision < 0 || len(decoded.Targets) > maxTargets {
		return Configuration{}, fmt.Errorf("invalid configuration: revision %d, %d targets (maximum %d)",
			decoded.Revision, len(decoded.Targets), maxTargets)
	}
	c := Configuration{Revision: decoded.Revision, Addresses: make(map[string]Address, len(decoded.Targets))}
	for _, t := range decoded.Targets {
		address, err := ParseAddress(t.Address)
		_, twice := c.Addresses[t.Name]
		switch {
		case !route.ValidTarget(t.Name) || t.Name == route.KubernetesAPI:
			c.Errors = append(c.Errors, fmt.Errorf("%.70q: not a valid target name", t.Name))
		case twice:
			c.Errors = append(c.Errors, fmt.Errorf("duplicate target %s", t.Name))
		case err != nil:
			c.Errors = append(c.Errors, fmt.Errorf("target %s: %w", t.Name, err))
		default:
			c.Addresses[t.Name] = address
		}
	}
	return c, nil
}
