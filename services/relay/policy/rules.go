package policy

import (
	"fmt"
	"os"
	"regexp"

	"sigs.k8s.io/yaml"

	"lockstep.internal/services/relay/route"
)

// ruleFile is the format of a file of rules.
type ruleFile struct {
	Callers []struct {
		Subject    string   `json:"subject"`
		Agents     []int64  `json:"agents"`
		Projects   []int64  `json:"projects"`
		AllAgents  bool     `json:"all_agents"`
		Targets    []string `json:"targets"`
		Workspaces bool     `json:"workspaces"`
		ReadOnly   bool     `json:"read_only"`
	} `json:"callers"`
}

// subject of a service: it becomes part of the impersonated user name.
var subject = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@/-]{0,127}$`)

// ReadRules reads the rules for services from a YAML file:
//
//	callers:
//	- subject: ci               # sub of its tokens, or the issuer of tokens without one
//	  agents: [7]               # at least one of agents, projects: [3] and all_agents: true
//	  targets: [kubernetes]     # and names of other targets
//	  read_only: true           # may only read the Kubernetes API
//	- subject: gateway
//	  all_agents: true
//	  workspaces: true          # ports of workspaces; needs no targets
//
// The error names the rule that is wrong.
func ReadRules(path string) ([]Rule, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the rules for callers: %w", err)
	}
	return parseRules(raw)
}

func parseRules(raw []byte) ([]Rule, error) {
	var file ruleFile
	if err := yaml.UnmarshalStrict(raw, &file); err != nil {
		return nil, fmt.Errorf("parse the rules for callers: %w", err)
	}
	rules := make([]Rule, 0, len(file.Callers))
	for i, c := range file.Callers {
		switch {
		case !subject.MatchString(c.Subject):
			return nil, fmt.Errorf("callers[%d]: subject %.130q must have 1 to 128 letters, digits or . _ @ / -", i, c.Subject)
		case len(c.Agents) == 0 && len(c.Projects) == 0 && !c.AllAgents:
			return nil, fmt.Errorf("callers[%d] (%s): names no agents: set agents, projects or all_agents", i, c.Subject)
		case len(c.Targets) == 0 && !c.Workspaces:
			return nil, fmt.Errorf("callers[%d] (%s): names no targets: set targets, such as %s, or workspaces", i,
				c.Subject, route.KubernetesAPI)
		case c.Workspaces && c.ReadOnly:
			return nil, fmt.Errorf("callers[%d] (%s): workspaces have no read_only: use a rule of its own", i, c.Subject)
		}
		for _, target := range c.Targets {
			if !route.ValidTarget(target) {
				return nil, fmt.Errorf("callers[%d] (%s): %.100q is not the name of a target", i, c.Subject, target)
			}
		}
		rules = append(rules, Rule{
			Subject: c.Subject, Agents: c.Agents, Projects: c.Projects, All: c.AllAgents, Targets: c.Targets,
			Workspaces: c.Workspaces, ReadOnly: c.ReadOnly,
		})
	}
	return rules, nil
}
