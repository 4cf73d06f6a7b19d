package deployment_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// composeAccess returns the access of the services of a compose file.
func composeAccess(raw []byte) (accesses, error) {
	var file struct {
		Services map[string]map[string]any
		Volumes  map[string]any
		Networks map[string]any
	}
	if err := yaml.Unmarshal(raw, &file); err != nil {
		return nil, err
	}
	for name, options := range file.Volumes {
		if options != nil {
			return nil, fmt.Errorf("options of volume %s: %w", name, errUnknown)
		}
	}
	networks := map[string]string{} // by name, as access
	for name, options := range file.Networks {
		switch text := text(options); text {
		case "<nil>":
			networks[name] = "network " + name
		case "internal=true":
			networks[name] = "internal network " + name
		default:
			return nil, fmt.Errorf("network %s has the options %s: %w", name, text, errUnknown)
		}
	}
	found := accesses{}
	for name, service := range file.Services {
		if err := addService(found, name, service, networks); err != nil {
			return nil, fmt.Errorf("service %s: %w", name, err)
		}
	}
	return found, nil
}

// harmless are the fields of a service that give no access.
func harmless() []string {
	return []string{
		"build", "command", "depends_on", "deploy", "environment", "healthcheck", "image", "logging", "profiles",
		"pull_policy", "restart", "stop_grace_period",
	}
}

func addService(found accesses, name string, service map[string]any, networks map[string]string) error {
	service = maps.Clone(service)
	addRoles(found, name, service)
	take := func(field string) []string {
		all := texts(service[field])
		delete(service, field)
		return all
	}
	for _, field := range harmless() {
		delete(service, field)
	}
	if user := take("user"); len(user) == 0 {
		found.add(name, "user root")
	} else if user[0] != "65532:65532" {
		found.add(name, "user "+user[0])
	}
	// Anything else gives more access.
	for field, expected := range map[string]string{
		"read_only": "true", "cap_drop": "ALL", "security_opt": "no-new-privileges:true",
	} {
		if all := take(field); !slices.Equal(all, []string{expected}) {
			return fmt.Errorf("%s is %q: %w", field, all, errUnknown)
		}
	}
	if err := addNetworks(found, name, take("network_mode"), take("networks"), networks); err != nil {
		return err
	}
	for field, title := range map[string]string{
		"cap_add": "capability", "ports": "port", "secrets": "secret", "tmpfs": "folder in memory", "volumes": "",
	} {
		for _, text := range take(field) {
			found.add(name, strings.TrimSpace(title+" "+text))
		}
	}
	for field := range service {
		return fmt.Errorf("field %s: %w", field, errUnknown)
	}
	return nil
}

func addNetworks(found accesses, name string, mode, joined []string, networks map[string]string) error {
	switch {
	case len(mode) > 0:
		other, ofService := strings.CutPrefix(mode[0], "service:")
		if ofService {
			found.add(name, "network of the container "+other)
		}
		if !ofService && mode[0] != "none" || len(joined) > 0 {
			return fmt.Errorf("network %s: %w", mode[0], errUnknown)
		}
	case len(joined) == 0:
		return fmt.Errorf("a network with all others: %w", errUnknown)
	}
	for _, network := range joined {
		if networks[network] == "" {
			return fmt.Errorf("network %s: %w", network, errUnknown)
		}
		found.add(name, networks[network])
	}
	return nil
}

var databaseUser = regexp.MustCompile(`postgres(?:ql)?://([^:@/]*)`)

// addRoles adds the roles of PostgreSQL in connection strings.
func addRoles(found accesses, name string, service map[string]any) {
	for _, field := range []string{"command", "entrypoint", "environment"} {
		for _, text := range texts(service[field]) {
			for _, match := range databaseUser.FindAllStringSubmatch(text, -1) {
				found.add(name, "PostgreSQL role "+match[1])
			}
		}
	}
}

// texts returns a value, or the values of a list. Values with several fields are JSON-like.
func texts(value any) []string {
	switch v := value.(type) {
	case nil:
		return nil
	case []any:
		all := make([]string, len(v))
		for i, one := range v {
			all[i] = text(one)
		}
		return all
	default:
		return []string{text(v)}
	}
}

func text(value any) string {
	fields, ok := value.(map[string]any)
	if !ok {
		return fmt.Sprint(value)
	}
	all := make([]string, 0, len(fields))
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		all = append(all, name+"="+text(fields[name]))
	}
	return strings.Join(all, " ")
}
