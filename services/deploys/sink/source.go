package sink

import (
	"cmp"
	"path"
	"regexp"
	"strings"

	"lockstep.internal/libs/config"
	"lockstep.internal/schemas/gen/events"
)

// SourceConfig selects the fields of a fact that name its commit and repository.
type SourceConfig struct {
	CommitKeys     []string `yaml:"commit_keys" help:"annotations or labels that hold the commit; the first one found wins"`
	RepositoryKeys []string `yaml:"repository_keys" help:"annotations or labels that hold the repository, as owner/name or as a URL; the first one found wins"`
	ImagePattern   string   `yaml:"image_pattern" help:"regular expression for image references, used if the keys are absent, with the groups (?P<commit>…) and (?P<repository>…); default: none"`
	Repository     string   `yaml:"repository" help:"owner/name of the repository of facts that name none; default: none"`
	Repositories   []string `yaml:"repositories" help:"repositories that the sink may write to, * for any characters but /; default: the one of the setting repository; one of both is required, because the annotations of a workload name its repository"`
}

// DefaultSource returns the default configuration.
func DefaultSource() SourceConfig {
	return SourceConfig{
		CommitKeys:     []string{"lockstep.dev/commit", "org.opencontainers.image.revision"},
		RepositoryKeys: []string{"lockstep.dev/repository", "org.opencontainers.image.source"},
	}
}

// Validate returns the errors of the pattern and of the repositories.
func (c SourceConfig) Validate() []error {
	var faults []error
	if pattern, err := regexp.Compile(c.ImagePattern); err != nil {
		faults = append(faults, config.Invalid("image_pattern", "%v", err))
	} else if c.ImagePattern != "" && pattern.SubexpIndex("commit") < 0 && pattern.SubexpIndex("repository") < 0 {
		faults = append(faults, config.Invalid("image_pattern", "needs a group (?P<commit>…) or (?P<repository>…)"))
	}
	if _, ok := parseRepository(c.Repository, ""); c.Repository != "" && !ok {
		faults = append(faults, config.Invalid("repository", "%q is not owner/name", c.Repository))
	}
	for _, p := range c.Repositories {
		if _, err := path.Match(p, ""); err != nil {
			faults = append(faults, config.Invalid("repositories", "%q is not a pattern such as owner/*", p))
		}
	}
	return faults
}

// allows reports whether the sink may write to the repository.
func (c SourceConfig) allows(repository string) bool {
	if len(c.Repositories) == 0 {
		return repository == c.Repository
	}
	return matches(c.Repositories, repository)
}

// Source is a commit of a repository.
type Source struct {
	Owner, Name string
	// Commit is 7 to 64 lower-case hexadecimal digits.
	Commit string
}

// Repository returns owner/name, or "" if there is none.
func (s Source) Repository() string {
	if s.Owner == "" {
		return ""
	}
	return s.Owner + "/" + s.Name
}

// Finder finds the commit and the repository of facts.
type Finder struct {
	cfg     SourceConfig
	host    string
	pattern *regexp.Regexp
}

// NewFinder compiles the configuration. It ignores a repository URL of another host.
func NewFinder(cfg SourceConfig, host string) (*Finder, error) {
	if faults := cfg.Validate(); len(faults) > 0 {
		return nil, faults[0]
	}
	f := &Finder{cfg: cfg, host: host}
	if cfg.ImagePattern != "" {
		f.pattern = regexp.MustCompile(cfg.ImagePattern) // Validated above.
	}
	return f, nil
}

var commitPattern = regexp.MustCompile(`^[0-9a-f]{7,64}$`)

// Find returns the commit and repository of a fact. It returns false unless the fact names both and the repository is
// allowed. For a fact about an environment without a commit key, the run is the commit.
func (f *Finder) Find(fact events.DeployFact) (Source, bool) {
	s, ok := f.Repository(fact)
	return s, ok && s.Commit != ""
}

// Repository is like [Finder.Find], but does not require a commit.
func (f *Finder) Repository(fact events.DeployFact) (Source, bool) {
	commit, repository := lookup(fact, f.cfg.CommitKeys), lookup(fact, f.cfg.RepositoryKeys)
	if f.pattern != nil && fact.Rollout != nil {
		for _, image := range fact.Rollout.Images {
			commit = cmp.Or(commit, f.group(image.Image, "commit"))
			repository = cmp.Or(repository, f.group(image.Image, "repository"))
		}
	}
	if fact.Environment != nil {
		commit = cmp.Or(commit, fact.Environment.Run)
	}
	s, ok := parseRepository(cmp.Or(repository, f.cfg.Repository), f.host)
	s.Commit = strings.ToLower(strings.TrimSpace(commit))
	if !commitPattern.MatchString(s.Commit) {
		s.Commit = ""
	}
	if !ok || !f.cfg.allows(s.Repository()) {
		return Source{}, false
	}
	return s, true
}

func lookup(fact events.DeployFact, keys []string) string {
	for _, key := range keys {
		if v := cmp.Or(fact.Workload.Annotations[key], fact.Workload.Labels[key]); v != "" {
			return v
		}
	}
	return ""
}

func (f *Finder) group(image, name string) string {
	found := f.pattern.FindStringSubmatch(image)
	if i := f.pattern.SubexpIndex(name); found != nil && i >= 0 {
		return found[i]
	}
	return ""
}

var (
	ownerPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,99}$`)
	namePattern  = regexp.MustCompile(`^[A-Za-z0-9._-]{1,100}$`)
)

// parseRepository parses owner/name, https://host/owner/name and git@host:owner/name, with or
// without .git. If host is set, a URL must have it.
func parseRepository(text, host string) (Source, bool) {
	rest := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSpace(text), "/"), ".git")
	if _, after, ok := strings.Cut(rest, "://"); ok {
		rest = after
		if at := strings.LastIndex(rest, "@"); at >= 0 {
			rest = rest[at+1:]
		}
		var given string
		given, rest, _ = strings.Cut(rest, "/")
		if given, _, _ = strings.Cut(given, ":"); host != "" && !strings.EqualFold(given, host) {
			return Source{}, false
		}
	} else if _, after, ok := strings.Cut(rest, "@"); ok {
		var given string
		given, rest, _ = strings.Cut(after, ":")
		if host != "" && !strings.EqualFold(given, host) {
			return Source{}, false
		}
	}
	parts := strings.Split(rest, "/")
	if len(parts) != 2 || !ownerPattern.MatchString(parts[0]) || !namePattern.MatchString(parts[1]) ||
		parts[1] == "." || parts[1] == ".." {
		return Source{}, false
	}
	return Source{Owner: parts[0], Name: parts[1]}, true
}
