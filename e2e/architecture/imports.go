package architecture

import (
	"fmt"
	"slices"
	"strings"
)

// Layer is a folder that an import rule names. A folder belongs to the longest layer that contains it.
type Layer string

// The layers. Each folder of services/ is a layer of its own.
const (
	Libs     Layer = "libs"
	Wire     Layer = "schemas/gen"
	Services Layer = "services/"
	Testkit  Layer = "tools/testkit"
	Kubelab  Layer = "tools/kubelab"
	Generate Layer = "tools/generate"
	Tools    Layer = "tools"
	Deploy   Layer = "deploy"
	Charts   Layer = "deploy/helm"
	// Subscribers and Controllers are example programs.
	Subscribers Layer = "deploy/subscribers"
	Controllers Layer = "deploy/controllers"
	E2E         Layer = "e2e"
)

// Rule lists what a layer may import besides itself. The layer "services/" stands for all services.
type Rule struct {
	Imports     []Layer
	TestImports []Layer // only its tests
}

// Allowed is the architecture. Services meet in events, schemas and libs only. Tools and e2e
// combine them.
func Allowed() map[Layer]Rule {
	return map[Layer]Rule{
		Wire:     {},
		Libs:     {Imports: []Layer{Wire}, TestImports: []Layer{Testkit}},
		Services: {Imports: []Layer{Libs, Wire}, TestImports: []Layer{Testkit}},
		// Any test may use it: it imports nothing of the tree.
		Testkit: {},
		// It replaces hundreds of modules, which must not reach others.
		Kubelab:  {},
		Generate: {Imports: []Layer{Libs, Wire}},
		// They know Lockstep by its events only.
		Subscribers: {},
		// They know Lockstep by the payload of admission only.
		Controllers: {},
		Tools:       {Imports: []Layer{Services, Libs, Wire, Testkit, Deploy}},
		E2E:         {Imports: []Layer{Services, Libs, Wire, Testkit, Tools, Deploy}},
		// It imports nothing of the tree: it embeds manifests.
		Deploy: {},
		// Tests of the chart: helm's dependencies must not reach others.
		Charts: {TestImports: []Layer{Testkit, Deploy}},
	}
}

// LayerOf returns the layer of an import path, and false if it has none.
func LayerOf(importPath string) (Layer, bool) {
	dir := strings.TrimPrefix(importPath, Prefix)
	if rest, isService := strings.CutPrefix(dir, string(Services)); isService {
		name, _, _ := strings.Cut(rest, "/")
		return Services + Layer(name), name != ""
	}
	found, ok := Layer(""), false
	for layer := range Allowed() {
		if within(dir, string(layer)) && len(layer) > len(found) {
			found, ok = layer, true
		}
	}
	return found, ok
}

func within(dir, layer string) bool { return dir == layer || strings.HasPrefix(dir, layer+"/") }

// kind returns the layer that stands for it in [Allowed].
func kind(layer Layer) Layer {
	if strings.HasPrefix(string(layer), string(Services)) {
		return Services
	}
	return layer
}

// Imports returns the imports that break [Allowed].
func Imports(packages []Package) []string {
	var faults []string
	for _, p := range packages {
		layer, known := LayerOf(p.Path)
		if !known {
			faults = append(faults,
				p.Path+" is not covered by an import rule: add its folder to Allowed in e2e/architecture")
			continue
		}
		rule := Allowed()[kind(layer)]
		faults = append(faults, forbidden(p.Path, "", layer, p.Imports, rule.Imports)...)
		faults = append(faults,
			forbidden(p.Path, "a test of ", layer, p.TestImports, append(slices.Clone(rule.Imports), rule.TestImports...))...)
	}
	return faults
}

func forbidden(importer, who string, from Layer, imports []string, allowed []Layer) []string {
	var faults []string
	for _, imported := range imports {
		if !strings.HasPrefix(imported, Prefix) {
			continue
		}
		to, known := LayerOf(imported)
		switch {
		case !known:
			faults = append(faults,
				fmt.Sprintf("%s%s imports %s, which is not covered by an import rule", who, importer, imported))
		case to != from && !slices.Contains(allowed, kind(to)):
			faults = append(faults, fmt.Sprintf("%s%s imports %s: %s may not use %s", who, importer, imported, from, to))
		}
	}
	return faults
}
