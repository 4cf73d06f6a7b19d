package devfile

import (
	"context"
	"regexp"

	"go.yaml.in/yaml/v3"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// maxParents limits the parents of a devfile, their parents included.
const maxParents = 5

// Parent is a reference to a devfile of a registry: ID, and perhaps Version, or URI.
type Parent struct {
	ID, Version string
	// RegistryURL is empty for the first configured registry.
	RegistryURL string
	URI         string
}

// Fetch returns the content of a parent, of at most [MaxSize] bytes. Its errors are faults for the user.
type Fetch func(ctx context.Context, p Parent) ([]byte, error)

// Resolve reads a devfile with its parents. Errors are those of [Read] and of fetch.
func Resolve(ctx context.Context, data []byte, fetch Fetch) (Devfile, error) {
	root, err := parseLimited(data)
	if err != nil {
		return Devfile{}, err
	}
	merged, err := withParents(ctx, root, fetch, maxParents)
	if err != nil {
		return Devfile{}, err
	}
	return read(merged)
}

// withParents returns the document with the content of its parent, which may have a parent, too.
func withParents(ctx context.Context, root *yaml.Node, fetch Fetch, remaining int) (*yaml.Node, error) {
	reference := field(root, "parent")
	if isEmpty(reference) {
		return root, nil
	}
	if remaining == 0 {
		return nil, fault.New(errcode.InvalidArgument, "the devfile has more than %d parents", maxParents).
			With("field", "devfile")
	}
	p, err := parentOf(reference)
	if err != nil {
		return nil, err
	}
	data, err := fetch(ctx, p)
	if err != nil {
		return nil, err
	}
	parent, err := parseLimited(data)
	if err == nil {
		parent, err = withParents(ctx, parent, fetch, remaining-1)
	}
	if err != nil {
		reason := fault.From(err)
		return nil, fault.New(reason.Code, "the parent %s: %s", p, reason.Message).With("field", "devfile")
	}
	return merge(parent, reference, root)
}

// String names the parent in errors.
func (p Parent) String() string {
	switch {
	case p.URI != "":
		return clip(p.URI)
	case p.Version != "":
		return clip(p.ID) + " " + clip(p.Version)
	default:
		return clip(p.ID)
	}
}

var (
	parentID      = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$`)
	parentVersion = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.+-]{0,62}$`)
)

// parentOf reads the reference to a parent. The other fields of it are overrides.
func parentOf(n *yaml.Node) (Parent, error) {
	r := &reader{remaining: maxExpanded}
	o := r.object("parent", n)
	p := Parent{
		ID: o.literal("id"), Version: o.literal("version"), RegistryURL: o.literal("registryUrl"), URI: o.literal("uri"),
	}
	o.refuse("kubernetes", "is not supported; use id, or a uri of a registry")
	o.ignore(overridden()...)
	o.refuseUnknown()
	switch {
	case p.ID == "" && p.URI == "":
		o.addf("id", "is missing: name a devfile of a registry")
	case p.ID != "" && p.URI != "":
		o.addf("uri", "is a second parent; give id or uri")
	case p.ID != "" && !parentID.MatchString(p.ID):
		o.addf("id", "%.80q is not the name of a devfile", p.ID)
	case p.URI != "" && p.RegistryURL+p.Version != "":
		o.addf("uri", "is complete; remove registryUrl and version")
	case p.Version != "" && !parentVersion.MatchString(p.Version):
		o.addf("version", "%.80q is not a version", p.Version)
	}
	return p, r.err()
}

// overridden are the fields with which a reference changes its parent.
func overridden() []string {
	return []string{
		"components", "commands", "projects", "starterProjects", "dependentProjects", "variables", "attributes",
	}
}
