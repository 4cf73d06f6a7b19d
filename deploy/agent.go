// Package deploy renders the manifests of agents from the files in kubernetes and rbac, which are those of the agent
// with the id 1.
package deploy

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

//go:embed kubernetes rbac
var files embed.FS

// Components of an agent.
const (
	Watcher    = "watcher"
	Dispatcher = "dispatcher"
	RelayAgent = "relay-agent"
)

// Components returns all components of an agent.
func Components() []string { return []string{Watcher, Dispatcher, RelayAgent} }

// Agent describes the manifests of one agent. All fields but RelayCA, Workloads and Credentials are required; RelayURLs
// and RelayPorts only for the relay agent.
type Agent struct {
	ID         int64
	Components []string
	// ImageRepository and ImageTag select the images: <repository>/<component>:<tag>.
	ImageRepository, ImageTag string
	// NATSPorts and RelayPorts are those that NetworkPolicies allow.
	NATSPorts, RelayPorts []string
	RelayURLs             []string
	// NamespacePrefix is the prefix of the namespaces of workspaces.
	NamespacePrefix string
	// RelayCA is the PEM of the authority of the relays' certificate. Defaults to the authorities of the system.
	RelayCA string
	// Workloads makes the watcher report all workloads of the cluster, and permits it.
	Workloads bool
	// Credentials is the content of the agent's credentials file. Without it, the Secret is left as it is.
	Credentials []byte
}

// Render returns all objects as YAML, in an order in which they can be created.
func (a Agent) Render() (string, error) {
	if a.NamespacePrefix == "" {
		return "", errors.New("the agent has no namespace prefix: it could write to every namespace")
	}
	var paths []string
	for _, c := range a.Components {
		paths = append(paths, "rbac/"+c+".yaml")
		if c == Watcher && a.Workloads {
			paths = append(paths, "rbac/workloads/watcher.yaml")
		}
	}
	var documents []string
	for _, path := range paths {
		var err error
		if documents, err = a.add(documents, path); err != nil {
			return "", err
		}
	}
	objects, err := a.objects()
	if err != nil {
		return "", err
	}
	documents = append(documents, objects...)
	for _, c := range a.Components {
		if documents, err = a.add(documents, "kubernetes/"+c+".yaml"); err != nil {
			return "", err
		}
	}
	return strings.Join(documents, "---\n"), nil
}

// add adds the documents of a file, except those that are there already: each file begins with the namespace.
func (a Agent) add(documents []string, path string) ([]string, error) {
	raw, err := files.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the manifest: %w", err)
	}
	for document := range strings.SplitSeq(string(raw), "\n---\n") {
		if document = a.own(document); !slices.Contains(documents, document) {
			documents = append(documents, document)
		}
	}
	return documents, nil
}

// own replaces what is different for each agent, and removes comments between objects.
func (a Agent) own(document string) string {
	replacements := []string{
		"lockstep-agent-1", a.namespace(), "image: lockstep/", "image: " + a.ImageRepository + "/",
		":latest\n", ":" + a.ImageTag + "\n", `"wss://relay.example"`, quote(strings.Join(a.RelayURLs, ",")),
		"'ws-'", "'" + a.NamespacePrefix + "'", `"ws-"`, quote(a.NamespacePrefix),
		"begin with ws-", "begin with " + a.NamespacePrefix,
	}
	if a.Workloads {
		replacements = append(replacements,
			`{name: LOCKSTEP_WORKLOADS_ENABLED, value: "false"}`, `{name: LOCKSTEP_WORKLOADS_ENABLED, value: "true"}`)
	}
	if a.RelayCA != "" {
		replacements = append(replacements,
			`{name: LOCKSTEP_RELAY_TLS_CA_FILE, value: ""}`, `{name: LOCKSTEP_RELAY_TLS_CA_FILE, value: /relay-ca/ca.crt}`)
	}
	var out strings.Builder
	for line := range strings.SplitSeq(strings.NewReplacer(replacements...).Replace(strings.Trim(document, "\n")), "\n") {
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.HasSuffix(line, "# NATS"):
			writePorts(&out, a.NATSPorts)
		case strings.HasSuffix(line, "# relays"):
			writePorts(&out, a.RelayPorts)
		default:
			out.WriteString(line + "\n")
		}
	}
	return out.String()
}

func writePorts(out *strings.Builder, ports []string) {
	for _, port := range ports {
		fmt.Fprintf(out, "        - {protocol: TCP, port: %s}\n", port)
	}
}

func (a Agent) namespace() string { return "lockstep-agent-" + strconv.FormatInt(a.ID, 10) }

// objects returns the Secret with the credentials and the ConfigMap with the authority, if there are any.
func (a Agent) objects() ([]string, error) {
	metadata := func(name string) map[string]string {
		return map[string]string{"name": name, "namespace": a.namespace()}
	}
	var all []map[string]any
	if len(a.Credentials) > 0 {
		all = append(all, map[string]any{
			"apiVersion": "v1", "kind": "Secret", "metadata": metadata("agent-credentials"),
			"stringData": map[string]string{"credentials.json": string(a.Credentials)},
		})
	}
	if a.RelayCA != "" && slices.Contains(a.Components, RelayAgent) {
		all = append(all, map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("relay-ca"),
			"data": map[string]string{"ca.crt": a.RelayCA},
		})
	}
	documents := make([]string, len(all))
	for i, o := range all {
		raw, err := json.Marshal(o) // JSON is YAML, too
		if err != nil {
			return nil, fmt.Errorf("encode the %s: %w", o["kind"], err)
		}
		documents[i] = string(raw) + "\n"
	}
	return documents, nil
}

// quote returns a string in YAML.
func quote(text string) string {
	raw, _ := json.Marshal(text) //nolint:errchkjson // a string
	return string(raw)
}
