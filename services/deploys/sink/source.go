package sink

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"lockstep.internal/libs/config"
	"lockstep.internal/schemas/gen/events"
)

// SourceConfig says where a fact tells which commit of which repository it brings.
type SourceConfig struct {
	CommitKeys     []string `yaml:"commit_keys" help:"annotations or labels that hold the commit, the first one found counts"`
	RepositoryKeys []string `yaml:"repository_keys" help:"annotations or labels that hold the repository, as owner/name or as its URL; the first one found counts"`
	ImagePattern   string   `yaml:"image_pattern" help:"regular expression over the image references, for what the keys do not tell: its groups (?P<commit>…) and (?P<repository>…); default: none"`
	Repository     string   `yaml:"repository" help:"owner/name of the repository of facts that tell none; default: none"`
	Repositories   []string `yaml:"repositories" help:"repositories that may be written to, * for any characters but /: whoever may annotate a workload names its repository; default: all that the token may write to"`
}

// DefaultSource is what SourceConfig is unless told.
func DefaultSource() SourceConfig {
	return SourceConfig{
		CommitKeys:     []string{"lockstep.dev/commit", "org.opencontainers.image.revision"},
		RepositoryKeys: []string{"lockstep.dev/repository", "org.opencontainers.image.source"},
	}
}

// Validate says what is wrong with the pattern and the repositories.
func (c SourceConfig) Validate() []error {
	var faults []error
	if pattern, err := regexp.Compile(c.ImagePattern); err != nil {
		faults = append(faults, config.Invalid("image_pattern", "%v", err))
	} else if c.ImagePattern != "" && pattern.SubexpIndex("commit") < 0 && pattern.SubexpIndex("repository") < 0 {
		faults = append(faults, config.Invalid("image_pattern", "has none of the groups (?P<commit>…) and (?P<repository>…)"))
	}
	if _, ok := parseRepository(c.Repository, ""); c.Repository != "" && !ok {
		faults = append(faults, config.Invalid("repository", "%q is not owner/name", c.Repository))
	}
	for _, p := range c.Repositories {
		if _, err := path.Match(p, ""); err != nil {
			faults = append(faults, config.Invalid("repositories", "%q is no pattern such as owner/*", p))
		}
	}
	return faults
}

// Source is a commit of a repository.
type Source struct {
	Owner, Name string
	// Commit is 7 to 64 lower-case hexadecimal digits.
	Commit string
}

// Repository is owner/name, "" when there is none.
func (s Source) Repository() string {
	if s.Owner == "" {
		return ""
	}
	return s.Owner + "/" + s.Name
}

// Finder finds the source of facts.
type Finder struct {
	cfg     SourceConfig
	host    string
	pattern *regexp.Regexp
}

// NewFinder compiles the configuration. A repository given as a URL of another host than this is none.
func NewFinder(cfg SourceConfig, host string) (*Finder, error) {
	if faults := cfg.Validate(); len(faults) > 0 {
		return nil, faults[0]
	}
	f := &Finder{cfg: cfg, host: host}
	if cfg.ImagePattern != "" {
		f.pattern = regexp.MustCompile(cfg.ImagePattern) // validated
	}
	return f, nil
}

var commitPattern = regexp.MustCompile(`^[0-9a-f]{7,64}$`)

// Find gives what the fact tells; false unless it names a commit and a repository that may be written to. Of an environment the run is the commit where
// nothing else tells it.
func (f *Finder) Find(fact events.DeployFact) (Source, bool) {
	s, ok := f.Repository(fact)
	return s, ok && s.Commit != ""
}

// Repository is Find for facts that need not tell a commit; it is empty then.
func (f *Finder) Repository(fact events.DeployFact) (Source, bool) {
	commit, repository := f.lookup(fact, f.cfg.CommitKeys), f.lookup(fact, f.cfg.RepositoryKeys)
	if f.pattern != nil && fact.Rollout != nil {
		for _, image := range fact.Rollout.Images {
			commit, repository = firstOf(commit, f.group(image.Image, "commit")), firstOf(repository, f.group(image.Image, "repository"))
		}
	}
	if fact.Environment != nil {
		commit = firstOf(commit, fact.Environment.Run)
	}
	s, ok := parseRepository(firstOf(repository, f.cfg.Repository), f.host)
	s.Commit = strings.ToLower(strings.TrimSpace(commit))
	if !commitPattern.MatchString(s.Commit) {
		s.Commit = ""
	}
	if !ok || !matches(f.cfg.Repositories, s.Repository()) {
		return Source{}, false
	}
	return s, true
}

func (f *Finder) lookup(fact events.DeployFact, keys []string) string {
	for _, key := range keys {
		if v := firstOf(fact.Workload.Annotations[key], fact.Workload.Labels[key]); v != "" {
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

// parseRepository reads owner/name, https://host/owner/name and git@host:owner/name, with or without .git. With a host, that of a URL must be it.
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
	if len(parts) != 2 || !ownerPattern.MatchString(parts[0]) || !namePattern.MatchString(parts[1]) || slices.Contains([]string{".", ".."}, parts[1]) {
		return Source{}, false
	}
	return Source{Owner: parts[0], Name: parts[1]}, true
}
