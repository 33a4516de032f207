package commands

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"
)

// typedFields says what people type for a field of a request that is not called like its flag: a flag ("--task"), or an
// argument as the usage line of the command calls it ("NAME"). The first that the command has counts. Fields that are called
// like their flag ("task_id", --task-id) need no entry.
var typedFields = map[string][]string{
	"action_prefix":    {"--action"},
	"agent_id":         {"--agent", "AGENT"},
	"agent_ids":        {"--agent", "AGENT"},
	"body":             {"TEXT"},
	"channel_type":     {"--type"},
	"channel_id":       {"--channel"},
	"channels":         {"--channel"},
	"cleared":          {"--all"},
	"command_id":       {"COMMAND"},
	"connection_model": {"--model"},
	"daemon_id":        {"--daemon", "DAEMON"},
	"delta":            {"--grow", "--shrink"},
	"email":            {"EMAIL"},
	"enabled":          {"--state"},
	"engine":           {"ENGINE", "ENGINE:TASK_ID"},
	"engines":          {"ENGINE"},
	"eta":              {"--eta", "--delay"},
	"eta_seconds":      {"--delay"},
	"expression":       {"--cron", "--every", "--at"},
	"group_seconds":    {"--group"},
	"include_archived": {"--archived"},
	"include_removed":  {"--removed"},
	"include_revoked":  {"--revoked"},
	"is_enabled":       {"--disabled"},
	"kind":             {"--cron", "--every", "--at"},
	"label":            {"LABEL"},
	"name":             {"NAME", "ROLE"},
	"observed_depth":   {"--depth"},
	"override_args":    {"--args"},
	"override_kwargs":  {"--kwargs"},
	"owner_id":         {"--owner"},
	"password":         {"--password-file"},
	"person_id":        {"--person"},
	"person_ids":       {"--person"},
	"policy":           {"--file", "--open"},
	"project_id":       {"--project"},
	"queue":            {"QUEUE"},
	"read_visibility":  {"--read"},
	"resource":         {"RESOURCE"},
	"role":             {"ROLE"},
	"schedule_id":      {"--schedule"},
	"schedule_name":    {"--name"},
	"schedules":        {"FILE"},
	"secret":           {"--secret-file"},
	"shared_marker":    {"--marker"},
	"slug":             {"SLUG"},
	"source":           {"--from"},
	"status":           {"--state"},
	"target":           {"--to"},
	"target_room_id":   {"TARGET"},
	"task_id":          {"TASK_ID", "ENGINE:TASK_ID"},
	"task_ids":         {"--task-id"},
	"task_name":        {"--task", "--name"},
	"url":              {"--url-file"},
	"worker_name":      {"--worker"},
	"write_visibility": {"--write"},
}

// typedAs is what the caller typed for a field of a request of the command: of several flags those that were given; "" when it
// comes from no place that has a name.
func typedAs(cmd *cobra.Command, field string) string {
	if strings.Contains(field, "[") { // of a file's content
		return ""
	}
	field = field[strings.LastIndexByte(field, '.')+1:]
	var has, given []string
	for _, name := range append([]string{"--" + strings.ReplaceAll(field, "_", "-")}, typedFields[field]...) {
		flag, isFlag := strings.CutPrefix(name, "--")
		f := cmd.Flags().Lookup(flag)
		switch {
		case isFlag && f != nil:
			has = append(has, name)
			if f.Changed {
				given = append(given, name)
			}
		case !isFlag && takes(cmd, name):
			has = append(has, name)
		}
	}
	if len(given) > 0 {
		return strings.Join(given, " and ")
	}
	return strings.Join(has, " or ")
}

// takes tells whether the usage line of a command names the argument.
func takes(cmd *cobra.Command, argument string) bool {
	for _, word := range strings.Fields(cmd.Use)[1:] {
		if strings.Trim(word, "[]….,") == argument || strings.HasPrefix(word, "["+argument+"[") {
			return true
		}
	}
	return false
}

// nameFlags has a refusal that names a field of the request name what the caller typed for it. The details keep the field.
func nameFlags(cmd *cobra.Command, err error) {
	var api *apiError
	if cmd == nil || !errors.As(err, &api) {
		return
	}
	field, ok := api.fault.Details["field"].(string)
	if !ok {
		return
	}
	rest, ok := strings.CutPrefix(api.fault.Msg, field+": ")
	if typed := typedAs(cmd, field); ok && typed != "" {
		api.fault.Msg = typed + ": " + rest
	}
}
