package proxy

import (
	"fmt"
	"os"
	"regexp"

	"sigs.k8s.io/yaml"

	"lockstep.internal/services/relay/policy"
	"lockstep.internal/services/relay/route"
)

// ruleFile is what services may do, as it is written down.
type ruleFile struct {
	Callers []struct {
		Subject   string   `json:"subject"`
		Agents    []int64  `json:"agents"`
		Projects  []int64  `json:"projects"`
		AllAgents bool     `json:"all_agents"`
		Targets   []string `json:"targets"`
		ReadOnly  bool     `json:"read_only"`
	} `json:"callers"`
}

// subject of a service: it becomes a part of the name as which the service appears in clusters.
var subject = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@/-]{0,127}$`)

// ReadRules reads which services may reach which agents from a YAML file:
//
//	callers:
//	- subject: ci               # sub of its tokens, or the issuer where they have none
//	  agents: [7]               # and, or, projects: [3], or all_agents: true
//	  targets: [kubernetes]     # and names of other targets
//	  read_only: true           # reads the Kubernetes API, and nothing else
//
// The error names the rule that cannot be meant.
func ReadRules(path string) ([]policy.Rule, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the rules of callers: %w", err)
	}
	return parseRules(raw)
}

func parseRules(raw []byte) ([]policy.Rule, error) {
	var file ruleFile
	if err := yaml.UnmarshalStrict(raw, &file); err != nil {
		return nil, fmt.Errorf("the rules of callers are malformed: %w", err)
	}
	rules := make([]policy.Rule, 0, len(file.Callers))
	for i, c := range file.Callers {
		switch {
		case !subject.MatchString(c.Subject):
			return nil, fmt.Errorf("rule %d of callers: subject %.130q is not one to 128 of letters, digits and . _ @ / -", i+1, c.Subject)
		case len(c.Agents) == 0 && len(c.Projects) == 0 && !c.AllAgents:
			return nil, fmt.Errorf("rule %d of callers, for %q, names no agents: give agents, projects or all_agents", i+1, c.Subject)
		case len(c.Targets) == 0:
			return nil, fmt.Errorf("rule %d of callers, for %q, names no targets, such as %s", i+1, c.Subject, route.KubernetesAPI)
		}
		for _, target := range c.Targets {
			if !route.ValidTarget(target) {
				return nil, fmt.Errorf("rule %d of callers, for %q: %.100q is not the name of a target", i+1, c.Subject, target)
			}
		}
		rules = append(rules, policy.Rule{Subject: c.Subject, Agents: c.Agents, Projects: c.Projects, All: c.AllAgents, Targets: c.Targets, ReadOnly: c.ReadOnly})
	}
	return rules, nil
}
