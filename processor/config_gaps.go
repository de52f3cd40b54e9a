package processor

// Gap is a setting that is read and checked, but that the process does not obey yet. It is refused where it asks for
// something else than what the process does.
type Gap struct {
	// Setting is the dotted name; with .* at the end all settings below it are meant.
	Setting string
	// Accepts is the single value that is accepted, as the service file writes it; "default" = that of the table of
	// settings; "" = none, the setting must be left out.
	Accepts string
	// Refuses is the single value that is refused, all others being obeyed. Accepts is "" then.
	Refuses string

	asked func(Config) bool // of a Config with its defaults: something else is wanted
}

// notYet is the only list of them. A line goes when the engine obeys the setting; nothing else has to change, but
// docs/settings.md is to be made anew.
var notYet = []Gap{}

// Gaps gives the settings that the process does not obey yet.
func Gaps() []Gap { return append([]Gap(nil), notYet...) }
