package cifile

import (
	"maps"
	"slices"
	"strings"

	"lockstep.internal/libs/yamlfile"
)

// Keywords of GitLab that are outside of the subset, with what to use instead.
var (
	refusedFileKeywords = map[string]string{
		"include":       "write all jobs into this file",
		"workflow":      "write rules into the jobs",
		"spec":          "use variables instead of inputs",
		"image":         noImage,
		"services":      noImage,
		"cache":         noCache,
		"before_script": "write it into default",
		"after_script":  "write it into default",
		"types":         "use stages",
	}

	refusedJobKeywords = map[string]string{
		"image":               noImage,
		"services":            noImage,
		"cache":               noCache,
		"dependencies":        "use needs, which also names the jobs whose artifacts are downloaded",
		"only":                "use rules with if",
		"except":              "use rules with if and when: never",
		"trigger":             "create the other pipeline with lockstep pipelines create in a script",
		"include":             "write all jobs into this file",
		"environment":         "rollouts are observed in the cluster; remove it",
		"release":             "call the release tool in a script",
		"pages":               "upload the pages in a script",
		"publish":             "upload the pages in a script",
		"secrets":             "read secrets in a script",
		"id_tokens":           "use the variable CI_JOB_TOKEN",
		"identity":            "use the variable CI_JOB_TOKEN",
		"inherit":             "set the keyword in the job, which overrides default",
		"interruptible":       "cancel pipelines with lockstep pipelines cancel",
		"resource_group":      "use needs between the jobs",
		"coverage":            "evaluate the coverage in a script",
		"start_in":            noDelay,
		"hooks":               "use before_script",
		"run":                 "use script",
		"manual_confirmation": "manual jobs are not supported; remove it",
		"dast_configuration":  "call the scanner in a script",
	}

	jobKeywords = set("extends stage before_script script after_script tags variables needs artifacts rules when " +
		"timeout retry allow_failure parallel")
	defaultKeywords = set("before_script after_script tags artifacts timeout retry")

	refusedRuleKeywords = map[string]string{
		"changes":       "use if with a variable",
		"exists":        "test for the file in a script",
		"needs":         "use needs of the job with optional: true",
		"interruptible": "remove it",
		"start_in":      noDelay,
	}
	ruleKeywords = set("if when allow_failure variables")

	refusedArtifactsKeywords = map[string]string{
		"reports":   "use paths; reports are not evaluated",
		"expose_as": "use paths",
		"public":    "artifacts are visible to the members of the project; remove it",
		"access":    "artifacts are visible to the members of the project; remove it",
	}
	artifactsKeywords = set("name paths exclude untracked when expire_in")

	refusedNeedKeywords = map[string]string{
		"project":  "jobs of other projects are not supported",
		"pipeline": "jobs of other pipelines are not supported",
		"ref":      "jobs of other pipelines are not supported",
		"parallel": "a need of a parallel job needs all of its copies",
	}
	needKeywords = set("job artifacts optional")

	refusedRetryKeywords = map[string]string{"exit_codes": "end with another status in the script"}
	retryKeywords        = set("max when")
	allowFailureKeywords = set("exit_codes on_denied_admission")
	parallelKeywords     = set("matrix")
	variableKeywords     = set("value expand")
	fileVariableKeywords = set("value expand description options")
)

const (
	noImage = "the configuration of the runner chooses the image; choose a runner with tags"
	noCache = "pass files on with artifacts and needs"
	noDelay = "delayed jobs are not supported; use when: on_success"
)

func set(words string) map[string]bool {
	out := map[string]bool{}
	for word := range strings.FieldsSeq(words) {
		out[word] = true
	}
	return out
}

// refuse reports an entry whose key is not one of the known keywords.
func (d *decoder) refuse(e yamlfile.Entry, where string, refused map[string]string, known map[string]bool) {
	if hint, ok := refused[e.Key]; ok {
		d.Addf(e.Position, "the keyword %s is not supported: %s", e.Key, hint)
		return
	}
	if where == "default" && jobKeywords[e.Key] {
		d.Addf(e.Position, "the keyword %s cannot be in default: write it into the jobs", e.Key)
		return
	}
	similar := d.Suggestion(e.Key, slices.Collect(maps.Keys(known)))
	d.Addf(e.Position, "%s has no keyword %s%s", where, yamlfile.Quote(e.Key), similar)
}
