package architecture

import (
	"fmt"
	"slices"
	"strings"
)

// Place is a part of the tree that the rules name. A folder belongs to the longest place above it.
type Place string

// The places. Each folder of services/ is a place of its own.
const (
	Libs     Place = "libs"
	Wire     Place = "schemas/gen"
	Services Place = "services/"
	Testkit  Place = "tools/testkit"
	Kubelab  Place = "tools/kubelab"
	Generate Place = "tools/generate"
	Tools    Place = "tools"
	Outside  Place = "deploy/subscribers"
	E2E      Place = "e2e"
)

// Rule lists what a place may import besides itself. The place "services/" stands for all services.
type Rule struct {
	Imports     []Place
	TestImports []Place // only its tests
}

// Allowed is the architecture. Services meet in events, schemas and libs only. Tools and e2e
// combine them.
func Allowed() map[Place]Rule {
	return map[Place]Rule{
		Wire:     {},
		Libs:     {Imports: []Place{Wire}, TestImports: []Place{Testkit}},
		Services: {Imports: []Place{Libs, Wire}, TestImports: []Place{Testkit}},
		// Any test may use it: it imports nothing of the tree.
		Testkit: {},
		// It replaces hundreds of modules, which must not reach others.
		Kubelab:  {},
		Generate: {Imports: []Place{Libs, Wire}},
		// Example programs: they know Lockstep by its events only.
		Outside: {},
		Tools:   {Imports: []Place{Services, Libs, Wire, Testkit}},
		E2E:     {Imports: []Place{Services, Libs, Wire, Testkit, Tools}},
	}
}

// PlaceOf returns the place of an import path, and false if it has none.
func PlaceOf(importPath string) (Place, bool) {
	dir := strings.TrimPrefix(importPath, Prefix)
	if rest, isService := strings.CutPrefix(dir, string(Services)); isService {
		name, _, _ := strings.Cut(rest, "/")
		return Services + Place(name), name != ""
	}
	found, ok := Place(""), false
	for place := range Allowed() {
		if within(dir, string(place)) && len(place) > len(found) {
			found, ok = place, true
		}
	}
	return found, ok
}

func within(dir, place string) bool { return dir == place || strings.HasPrefix(dir, place+"/") }

// kind returns the place that stands for it in [Allowed].
func kind(place Place) Place {
	if strings.HasPrefix(string(place), string(Services)) {
		return Services
	}
	return place
}

// Imports returns the imports that break [Allowed].
func Imports(packages []Package) []string {
	var faults []string
	for _, p := range packages {
		place, known := PlaceOf(p.Path)
		if !known {
			faults = append(
				faults,
				p.Path+" is in no place that the architecture knows: give its folder one in e2e/architecture",
			)
			continue
		}
		rule := Allowed()[kind(place)]
		faults = append(faults, forbidden(p.Path, "", place, p.Imports, rule.Imports)...)
		faults = append(
			faults,
			forbidden(p.Path, "a test of ", place, p.TestImports, append(slices.Clone(rule.Imports), rule.TestImports...))...)
	}
	return faults
}

func forbidden(importer, who string, from Place, imports []string, allowed []Place) []string {
	var faults []string
	for _, imported := range imports {
		if !strings.HasPrefix(imported, Prefix) {
			continue
		}
		to, known := PlaceOf(imported)
		switch {
		case !known:
			faults = append(
				faults,
				fmt.Sprintf("%s%s imports %s, which is in no place that the architecture knows", who, importer, imported),
			)
		case to != from && !slices.Contains(allowed, kind(to)):
			faults = append(faults, fmt.Sprintf("%s%s imports %s: %s may not use %s", who, importer, imported, from, to))
		}
	}
	return faults
}
