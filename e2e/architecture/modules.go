package architecture

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// standalone returns the modules with separate dependencies: programs that run beside Lockstep.
// They are not in go.work.
func standalone() []string {
	return []string{"tools/kubelab", "tools/generate/pinned", "tools/lint", "tools/natscli", "tools/s3server"}
}

// outside returns the modules that are not in go.work.
func outside() []string { return append(standalone(), "tools/generate", "deploy/helm") }

// Modules returns the faults of the go.mod files.
func Modules(tree Tree) []string {
	byPath := map[string]Module{}
	for _, m := range tree.Modules {
		byPath[m.Path] = m
	}
	var faults []string
	for _, m := range tree.Modules {
		faults = append(faults, identity(tree, m)...)
		faults = append(faults, replacements(byPath, m)...)
		faults = append(faults, requirements(tree, byPath, m)...)
	}
	for _, dir := range tree.Used {
		if !slices.ContainsFunc(tree.Modules, func(m Module) bool { return m.Dir == dir }) {
			faults = append(faults, fmt.Sprintf("go.work uses %s, which has no go.mod", dir))
		}
	}
	faults = append(faults, versions(tree.Modules)...)
	return append(faults, kubelabVersions(tree.Modules)...)
}

// identity: a module is named after its folder, has the Go version of go.work, and is in the
// workspace unless it is listed above.
func identity(tree Tree, m Module) []string {
	var faults []string
	if m.Path != Prefix+m.Dir {
		faults = append(faults, fmt.Sprintf("%s/go.mod: the module is called %s instead of %s", m.Dir, m.Path, Prefix+m.Dir))
	}
	if m.Go != tree.Go {
		faults = append(faults, fmt.Sprintf("%s/go.mod: go %s, but go.work has %s", m.Dir, m.Go, tree.Go))
	}
	isUsed, isOutside := slices.Contains(tree.Used, m.Dir), slices.Contains(outside(), m.Dir)
	if isUsed == isOutside {
		faults = append(faults,
			fmt.Sprintf("%s must be either in go.work or in outside() of e2e/architecture", m.Dir))
	}
	return faults
}

// replacements: each required module of the tree is replaced by its folder. Allowed besides are the
// modules that these require in turn, and what kubelab must replace.
func replacements(byPath map[string]Module, m Module) []string {
	var faults []string
	reachable := closure(byPath, m)
	replaced := map[string]bool{}
	for _, r := range m.Replaces {
		replaced[r.Path] = true
		own, isOwn := byPath[r.Path]
		switch {
		case !isOwn && m.Dir == string(Kubelab) && strings.HasPrefix(r.Path, "k8s.io/") && r.NewPath == r.Path:
			// k8s.io/kubernetes names its staging modules v0.0.0 and cannot be required otherwise.
		case !isOwn:
			faults = append(faults, fmt.Sprintf("%s/go.mod replaces %s: only modules of this tree may be", m.Dir, r.Path))
		case r.NewVersion != "" || path.Join(m.Dir, r.NewPath) != own.Dir:
			faults = append(faults,
				fmt.Sprintf("%s/go.mod replaces %s by %s instead of its folder %s", m.Dir, r.Path, r.NewPath, own.Dir))
		case !reachable[r.Path]:
			faults = append(faults, fmt.Sprintf("%s/go.mod replaces %s, which it does not need", m.Dir, r.Path))
		}
	}
	for _, r := range m.Requires {
		if _, isOwn := byPath[r.Path]; isOwn && !replaced[r.Path] {
			faults = append(faults,
				fmt.Sprintf("%s/go.mod needs a replace of %s by its folder, else it does not build with GOWORK=off", m.Dir, r.Path))
		}
	}
	return faults
}

// closure returns the modules of the tree that m requires, directly or not.
func closure(byPath map[string]Module, m Module) map[string]bool {
	found := map[string]bool{}
	var visit func(Module)
	visit = func(m Module) {
		for _, r := range m.Requires {
			if own, isOwn := byPath[r.Path]; isOwn && !found[r.Path] {
				found[r.Path] = true
				visit(own)
			}
		}
	}
	visit(m)
	return found
}

// requirements: a module of the tree is required only if it is used, directly or not.
func requirements(tree Tree, byPath map[string]Module, m Module) []string {
	used := map[string]bool{}
	packages := map[string]Package{}
	for _, p := range tree.Packages {
		packages[p.Path] = p
	}
	var visit func(imported string)
	visit = func(imported string) {
		owner := moduleOf(byPath, imported)
		if used[imported] || owner == "" {
			return
		}
		used[imported], used[owner] = true, true
		for _, next := range packages[imported].Imports {
			visit(next)
		}
	}
	for _, p := range tree.Packages {
		if moduleOf(byPath, p.Path) == m.Path {
			for _, imported := range append(slices.Clone(p.Imports), p.TestImports...) {
				visit(imported)
			}
		}
	}
	var faults []string
	for _, r := range m.Requires {
		if _, isOwn := byPath[r.Path]; isOwn && !used[r.Path] {
			faults = append(faults,
				fmt.Sprintf("%s/go.mod requires %s, which nothing in it uses: run go mod tidy", m.Dir, r.Path))
		}
	}
	return faults
}

// moduleOf returns the module of a package; empty if it is not in the tree.
func moduleOf(byPath map[string]Module, pkg string) string {
	for dir := pkg; dir != "." && dir != "/"; dir = path.Dir(dir) {
		if _, ok := byPath[dir]; ok {
			return dir
		}
	}
	return ""
}

// versions: a dependency that two modules use directly has one version. So each program alone is
// built from the versions that the workspace's tests have used.
func versions(modules []Module) []string {
	direct := map[string]map[string][]string{} // dependency → version → modules
	for _, m := range modules {
		if slices.Contains(standalone(), m.Dir) {
			continue
		}
		for _, r := range m.Requires {
			if r.Indirect || strings.HasPrefix(r.Path, Prefix) {
				continue
			}
			if direct[r.Path] == nil {
				direct[r.Path] = map[string][]string{}
			}
			direct[r.Path][r.Version] = append(direct[r.Path][r.Version], m.Dir)
		}
	}
	var faults []string
	for _, dependency := range slices.Sorted(maps.Keys(direct)) {
		if len(direct[dependency]) == 1 {
			continue
		}
		var who []string
		for _, version := range slices.Sorted(maps.Keys(direct[dependency])) {
			who = append(who, version+" in "+strings.Join(direct[dependency][version], ", "))
		}
		faults = append(faults, fmt.Sprintf("%s is required at different versions: %s", dependency, strings.Join(who, "; ")))
	}
	return faults
}

// kubelabVersions: kubelab has the versions of tools, which requires all that the services use. A package
// of another version is compiled a second time, and so is each package that imports it: minutes for the
// clients of Kubernetes.
func kubelabVersions(modules []Module) []string {
	// kwok needs a newer version than the workspace has. One package imports it.
	apart := []string{"github.com/Masterminds/semver/v3"}
	kubelab := map[string]string{}
	for _, m := range modules {
		if m.Dir == string(Kubelab) {
			for _, r := range m.Requires {
				kubelab[r.Path] = r.Version
			}
			for _, r := range m.Replaces {
				kubelab[r.Path] = r.NewVersion
			}
		}
	}
	var faults []string
	for _, m := range modules {
		if m.Dir != "tools" {
			continue
		}
		for _, r := range m.Requires {
			version, shared := kubelab[r.Path]
			if shared && version != r.Version && !slices.Contains(apart, r.Path) {
				faults = append(faults, fmt.Sprintf(
					"%s/go.mod: %s is %s, but %s in %s/go.mod: both need the same version, so that it is compiled once",
					Kubelab, r.Path, version, r.Version, m.Dir))
			}
		}
	}
	return faults
}
