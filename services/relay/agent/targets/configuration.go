package targets

import (
	"encoding/json"
	"fmt"

	"lockstep.internal/services/relay/route"
)

// maxTargets of one configuration.
const maxTargets = 1000

// Configuration is what a relay reports.
type Configuration struct {
	Revision int64
	// Addresses of targets, by name.
	Addresses map[string]Address
	// Faults are why some are left out.
	Faults []error
}

// wire is one line of the stream.
type wire struct {
	Revision int64 `json:"config_revision"`
	Targets  []struct {
		Name    string `json:"name"`
		Address string `json:"address"`
	} `json:"relay_targets"`
}

// Parse reads one line.
func Parse(line []byte) (Configuration, error) {
	var w wire
	if err := json.Unmarshal(line, &w); err != nil {
		return Configuration{}, fmt.Errorf("the relay sent something else than a configuration: %w", err)
	}
	if w.Revision < 0 || len(w.Targets) > maxTargets {
		return Configuration{}, fmt.Errorf("the relay sent a configuration of revision %d with %d targets: that cannot be", w.Revision, len(w.Targets))
	}
	c := Configuration{Revision: w.Revision, Addresses: make(map[string]Address, len(w.Targets))}
	for _, t := range w.Targets {
		address, err := ParseAddress(t.Address)
		_, twice := c.Addresses[t.Name]
		switch {
		case !route.ValidTarget(t.Name) || t.Name == route.KubernetesAPI:
			c.Faults = append(c.Faults, fmt.Errorf("%.70q is no name of a target", t.Name))
		case twice:
			c.Faults = append(c.Faults, fmt.Errorf("target %s is there twice", t.Name))
		case err != nil:
			c.Faults = append(c.Faults, fmt.Errorf("target %s: %w", t.Name, err))
		default:
			c.Addresses[t.Name] = address
		}
	}
	return c, nil
}
